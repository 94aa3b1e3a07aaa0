"""`sbproxy config print|schema`: the effective document, and the JSON Schema for editors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sbproxy_cli import diagnostics, output
from sbproxy_cli.boundary import verb
from sbproxy_cli.invocation import current

app = typer.Typer(help="Print the effective configuration, or its schema.", rich_markup_mode=None, no_args_is_help=True)


@app.command("print")
@verb("config print")
def print_config(
    context: typer.Context,
    path: Annotated[Path | None, typer.Argument(help="The configuration (sb.yml).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML.")] = False,
) -> None:
    """Print the document with every default filled in; secrets are masked, references stay."""
    chosen = current(context).required_config(path)
    from sbproxy.config.load import load_file
    from sbproxy.config.printed import as_yaml, lowering_notes

    loaded = load_file(chosen, os.environ, resolve_secrets=False)
    if as_json:
        from sbproxy.config.core.effective import effective

        # JSON has no place for the comments that the YAML form begins with.
        for note in lowering_notes(loaded):
            diagnostics.note(note)
        output.document(effective(loaded.config, loaded.references))
    else:
        output.block(as_yaml(loaded))


@app.command("schema")
@verb("config schema")
def schema(context: typer.Context) -> None:
    """Print the JSON Schema of sb.yml."""
    from sbproxy.config.schema import schema as sb_yml_schema

    output.document(sb_yml_schema())
