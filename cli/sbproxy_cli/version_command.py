"""`sbproxy version`, where it comes with other flags; the plain form is answered before the parser is loaded."""

from __future__ import annotations

import typer

from sbproxy_cli import output
from sbproxy_cli.boundary import verb


@verb("version")
def version(context: typer.Context) -> None:
    """Print the version line."""
    from sbproxy_cli.version import version_line

    output.lines(version_line())
