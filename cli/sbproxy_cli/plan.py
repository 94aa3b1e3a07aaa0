"""`sbproxy plan -f F`: what a configuration would change, without changing anything (contracts section 13)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbproxy.errors.config import ConfigInvalid
from sbproxy_cli import output
from sbproxy_cli.boundary import verb
from sbproxy_cli.invocation import current
from sbproxy_cli.options import Format, FormatOption, NoFetchOption

if TYPE_CHECKING:
    from sbproxy_cli.planning.proposal import Proposal

CHANGES = 2
SEMANTIC = 3

AgainstOption = Annotated[
    Path | None, typer.Option("--against", help="The document it is compared with; without it everything is new.")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Write the plan here, for apply -p.")]


@verb("plan")
def plan(
    context: typer.Context,
    against: AgainstOption = None,
    out: OutOption = None,
    no_fetch: NoFetchOption = False,
    output_format: FormatOption = Format.text,
) -> None:
    """Compare a configuration with a baseline: origins, deployments, which engines restart, and memory.

    Exit codes: 0 no change, 1 a file cannot be read or written, 2 changes, 3 the configuration is invalid.
    """
    path = current(context).required_config(None)
    from sbproxy_cli.planning.proposal import read_proposal

    try:
        proposal = read_proposal(path, against)
    except ConfigInvalid as error:
        if output_format is Format.json:
            output.envelope("plan", _refused(path, error))
            raise typer.Exit(SEMANTIC) from None
        raise
    if out is not None:
        _write(out, proposal)
    if output_format is Format.json:
        output.envelope("plan", {"valid": True, **proposal.fields()})
    else:
        from sbproxy_cli.planning.text import plan_lines

        output.outline(*plan_lines(proposal))
    if proposal.changed:
        raise typer.Exit(CHANGES)


def _write(out: Path, proposal: Proposal) -> None:
    body = {"schema_version": output.ENVELOPE_VERSION, "command": "plan", "valid": True, **proposal.fields()}
    out.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


def _refused(path: Path, error: ConfigInvalid) -> dict[str, object]:
    findings = [
        {"severity": "error", "file": each.file, "path": each.path, "reason": each.reason, "line": each.line}
        for each in error.problems
    ]
    return {"config": str(path), "valid": False, "findings": findings}
