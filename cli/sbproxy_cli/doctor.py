"""`sbproxy doctor [CONFIG]`: whether this machine can serve what a configuration asks for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sbproxy_cli import output
from sbproxy_cli.boundary import verb
from sbproxy_cli.invocation import current
from sbproxy_cli.local import open_local
from sbproxy_cli.options import Format, FormatOption

ENGINE_MISSING = 1


@verb("doctor")
def doctor(
    context: typer.Context,
    config: Annotated[Path | None, typer.Argument(help="A configuration whose models are to be looked at.")] = None,
    output_format: FormatOption = Format.text,
) -> None:
    """Show what this machine can serve, and what is in the way."""
    local = open_local(current(context).config_path(config))
    from sbproxy_cli.checkup.report import engine_missing, examine

    report = examine(local, os.environ)
    if output_format is Format.json:
        output.document(report)
    else:
        from sbproxy_cli.checkup.text import blocks

        output.outline(*blocks(report))
    if engine_missing(report):
        raise typer.Exit(ENGINE_MISSING)
