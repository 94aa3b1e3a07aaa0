"""The daemon that a command talks to: `--admin-url`, `--username` and where the password comes from."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sbproxy.errors.client import CredentialMissing

if TYPE_CHECKING:
    from sbproxy.client import AdminClient

DEFAULT_URL = "http://127.0.0.1:9090"
PASSWORD_VARIABLE = "SB_ADMIN_PASSWORD"  # noqa: S105 - the name of the variable, not a password
MAX_PASSWORD_CHARS = 4096

UrlOption = Annotated[str, typer.Option("--admin-url", envvar="SB_ADMIN_URL", help="Where the admin API listens.")]
UserOption = Annotated[str, typer.Option("--username", envvar="SB_ADMIN_USERNAME", help="Operator to act as.")]
PasswordStdinOption = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from stdin instead of SB_ADMIN_PASSWORD.")
]


def connect(url: str, username: str, *, password_stdin: bool, timeout_s: float | None = None) -> AdminClient:
    """A client for the daemon; CredentialMissing when there is no password to offer. ``timeout_s`` is for an answer."""
    from sbproxy.client import AdminClient

    password = read_password() if password_stdin else os.environ.get(PASSWORD_VARIABLE, "")
    if not password:
        raise CredentialMissing(url)
    return AdminClient(url, username, password, **({} if timeout_s is None else {"timeout": timeout_s}))


def password_or_prompt(url: str, username: str) -> str:
    """For commands that own a terminal: the variable, else a question that echoes nothing."""
    given = os.environ.get(PASSWORD_VARIABLE)
    return given or str(typer.prompt(f"Password of {username} at {url}", hide_input=True, err=True))


def read_password() -> str:
    """The first line of stdin, without its line end."""
    return sys.stdin.readline(MAX_PASSWORD_CHARS).rstrip("\r\n")
