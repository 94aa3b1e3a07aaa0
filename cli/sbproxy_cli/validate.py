"""`sbproxy validate`: everything that is wrong with a configuration, at once, without starting anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbproxy_cli import diagnostics, output
from sbproxy_cli.boundary import verb
from sbproxy_cli.invocation import current
from sbproxy_cli.options import Format, FormatOption, NoFetchOption

if TYPE_CHECKING:
    from sbproxy.errors import SbproxyError

REFUSED = 2


@verb("validate")
def validate(
    context: typer.Context,
    path: Annotated[Path | None, typer.Argument(help="The configuration (sb.yml).")] = None,
    no_fetch: NoFetchOption = False,
    output_format: FormatOption = Format.text,
) -> None:
    """Check a configuration, its catalog and its deployments. Opens no port and reads no secret."""
    chosen = current(context).required_config(path)
    if output_format is Format.text:
        check(chosen)
        return
    from sbproxy.errors import SbproxyError

    try:
        _examine(chosen)
    except SbproxyError as error:
        output.document({"path": str(chosen), "valid": False, **_failure(error)})
        raise typer.Exit(REFUSED) from None
    output.document({"path": str(chosen), "valid": True})


def check(path: Path) -> None:
    """Print `ok: …`, or raise what is wrong."""
    _examine(path)
    output.lines(f"ok: {path} is a valid sbproxy config")


def _examine(path: Path) -> None:
    """Warnings go to stderr in every form. Raises ConfigUnreadable or ConfigInvalid."""
    from sbproxy.daemon.checks import load_checked

    for warning in load_checked(path, os.environ, resolve_secrets=False).loaded.warnings:
        diagnostics.note(f"warning: {warning.text()}")


def _failure(error: SbproxyError) -> dict[str, Any]:
    from sbproxy.errors.config import ConfigInvalid

    problems = [
        {
            "file": each.file,
            "line": each.line,
            "path": each.path,
            "reason": each.reason,
            "near": each.near,
        }
        for each in (error.problems if isinstance(error, ConfigInvalid) else ())
    ]
    return {"error": str(error), "code": error.code, "problems": problems}
