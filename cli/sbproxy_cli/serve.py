"""`sbproxy [PATH]` and `sbproxy serve [PATH]`: runs the daemon on a configuration until it is told to stop."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated

import typer

from sbproxy_cli import diagnostics
from sbproxy_cli.argv import COMMANDS
from sbproxy_cli.boundary import verb
from sbproxy_cli.invocation import current


@verb("serve", daemon=True)
def serve(
    context: typer.Context,
    path: Annotated[Path | None, typer.Argument(help="The configuration (sb.yml).")] = None,
) -> None:
    """Run the daemon on a configuration.

    SIGHUP reloads it, Ctrl-C and SIGTERM drain and stop it, a second signal stops it at once.
    """
    invocation = current(context)
    chosen = invocation.required_config(path, serving=True)
    _hint_at_commands(chosen)
    if invocation.check:
        from sbproxy_cli.validate import check

        check(chosen)
    if invocation.locked:
        from sbproxy_cli.models.locking import require_locked

        require_locked(chosen)
    if invocation.check:
        return
    from sbproxy.daemon.main import serve as run_daemon

    raise typer.Exit(run_daemon(chosen, invocation.serve_options(os.environ)))


def _hint_at_commands(path: Path) -> None:
    """`sbproxy modles` is read as a path; say so before the missing file is reported."""
    word = str(path)
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    if path.exists() or not (near or word.isidentifier()):
        return
    hint = f"did you mean 'sbproxy {near[0]}'?" if near else "see 'sbproxy --help'"
    diagnostics.note(f"there is no command {word!r}; {hint}")
