"""`sbproxy admin hash-password`: turns a password into what `proxy.admin.operators[].password_hash` holds."""

from __future__ import annotations

from typing import Annotated

import typer

from sbproxy_cli import output
from sbproxy_cli.admin_args import read_password
from sbproxy_cli.boundary import verb
from sbproxy_cli.options import ArgvPassword

app = typer.Typer(help="Secrets of the admin API.", rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def admin() -> None:
    """Keep the noun even while it has one verb."""


@app.command("hash-password")
@verb("admin hash-password")
def hash_password(
    context: typer.Context,
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read the password from stdin.")] = False,
    argv_password: ArgvPassword = None,
) -> None:
    """Print the stored form of a password that comes on stdin."""
    if not password_stdin:
        raise typer.BadParameter("pipe the password in: sbproxy admin hash-password --password-stdin < FILE")
    password = read_password()
    if not password:
        raise typer.BadParameter("the password on stdin is empty")
    from sbproxy.admin.passwords import hash_password as hashed

    output.lines(hashed(password))
