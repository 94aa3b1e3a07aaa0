"""`sbproxy tui`: hands the terminal to the console, when there is a terminal and a console."""

from __future__ import annotations

import importlib.util
import sys

import typer

from sbproxy.errors.cli import NoTerminal, PartMissing
from sbproxy_cli.admin_args import DEFAULT_URL, UrlOption, UserOption, password_or_prompt
from sbproxy_cli.boundary import verb
from sbproxy_cli.options import ArgvPassword


@verb("tui")
def tui(
    context: typer.Context,
    admin_url: UrlOption = DEFAULT_URL,
    username: UserOption = "admin",
    argv_password: ArgvPassword = None,
) -> None:
    """Watch and steer a running daemon in a full-screen console."""
    # Textual writes escapes to whatever stderr is and then waits for keys that never come.
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise NoTerminal("the console", "sbproxy models ps")
    if importlib.util.find_spec("textual") is None:
        raise PartMissing("the console", "tui")
    from sbproxy_tui.entry import run

    raise typer.Exit(run(admin_url, username, password_or_prompt(admin_url, username)))
