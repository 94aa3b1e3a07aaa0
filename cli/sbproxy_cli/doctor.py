"""`sbproxy doctor [CONFIG]`: whether this machine can serve what a configuration asks for (contracts section 10)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sbproxy_cli import diagnostics, output
from sbproxy_cli.boundary import verb
from sbproxy_cli.invocation import current
from sbproxy_cli.local import open_local
from sbproxy_cli.options import Format, FormatOption

ENGINE_MISSING = 1
STARTUP_BLOCKED = 3


@verb("doctor")
def doctor(
    context: typer.Context,
    config: Annotated[Path | None, typer.Argument(help="A configuration whose models are to be looked at.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Also decide the checks of a startup gate.")] = False,
    online: Annotated[bool, typer.Option("--online", help="Also try to connect to the model hub.")] = False,
    output_format: FormatOption = Format.text,
) -> None:
    """Show what this machine can serve, and what is in the way.

    Exit codes: 1 a configured model has no engine here, 2 the configuration cannot be read, 3 --strict failed.
    """
    local = open_local(current(context).config_path(config))
    for warning in local.loaded.warnings if local.loaded else ():
        diagnostics.note(f"warning: {warning.text()}")
    from sbproxy_cli.checkup.report import engine_missing, examine, startup_blockers

    report = examine(local, os.environ, strict=strict, online=online)
    if output_format is Format.json:
        output.envelope("doctor", report)
    else:
        from sbproxy_cli.checkup.text import blocks

        output.outline(*blocks(report))
    if startup_blockers(report):
        raise typer.Exit(STARTUP_BLOCKED)
    if engine_missing(report):
        raise typer.Exit(ENGINE_MISSING)
