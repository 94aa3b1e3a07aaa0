"""The edge of every command: foreseen failures become one message and an exit code, Ctrl-C becomes 130."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NoReturn, ParamSpec, cast

import typer

from sbproxy.errors import SbproxyError
from sbproxy.errors.cli import SystemRefused
from sbproxy_cli import diagnostics
from sbproxy_cli.invocation import current

Params = ParamSpec("Params")
INTERRUPTED = 130


def verb(name: str, *, daemon: bool = False) -> Callable[[Callable[Params, None]], Callable[Params, None]]:
    """Wrap the command that the user knows as ``sbproxy <name>``; ``daemon`` when it starts one.

    The command must take ``context: typer.Context``; global flags that it does not use are refused here.
    """

    def wrap(command: Callable[Params, None]) -> Callable[Params, None]:
        @functools.wraps(command)
        def guarded(*args: Params.args, **kwargs: Params.kwargs) -> None:
            current(cast("typer.Context", kwargs["context"])).refuse_unused(name, daemon=daemon)
            try:
                command(*args, **kwargs)
            except SbproxyError as error:
                _fail(name, error)
            except OSError as error:
                # What a room did not foresee of the file system is still the user's place, not a defect of ours.
                _fail(name, SystemRefused(str(error.filename or ""), error.strerror or str(error)))
            except KeyboardInterrupt:
                diagnostics.interrupted(name)
                raise typer.Exit(INTERRUPTED) from None

        return guarded

    return wrap


def _fail(name: str, error: SbproxyError) -> NoReturn:
    from sbproxy_cli.exit_codes import exit_code

    diagnostics.failed(name, error)
    raise typer.Exit(exit_code(name, error)) from None
