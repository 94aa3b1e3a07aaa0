"""Reads a proposed configuration and its baseline, and puts together what the one would do to the other."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbproxy.config.core.plan import BlastRadius, ChangePlan, blast_radius, change_plan
from sbproxy.config.load import Loaded
from sbproxy.config.yaml_text import MAX_BYTES, decode
from sbproxy.daemon.checks import Checked, load_checked
from sbproxy.daemon.foundation import Foundation
from sbproxy.errors.config import ConfigInvalid, ConfigUnreadable
from sbproxy_cli.local import Local
from sbproxy_cli.planning.engines import EnginePlan, engine_plan


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know before applying. ``path`` is a key path or empty."""

    severity: str
    path: str
    reason: str
    line: int | None = None

    def text(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{self.severity}: {place}{self.reason}"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A valid document beside its baseline."""

    proposed: Loaded
    baseline: Loaded | None
    changes: ChangePlan
    engines: EnginePlan
    radius: BlastRadius
    findings: tuple[Finding, ...]

    @property
    def changed(self) -> bool:
        return bool(self.changes)

    def fields(self) -> dict[str, Any]:
        """The body of the ``plan`` envelope, which is also the plan file. Holds names and figures, no values."""
        return {
            "config": str(self.proposed.path),
            "against": str(self.baseline.path) if self.baseline else None,
            "baseline_revision": self.baseline.revision if self.baseline else None,
            "proposed_revision": self.proposed.revision,
            "proposed_content_hash": self.proposed.content_hash,
            "changed": self.changed,
            **dataclasses.asdict(self.changes),
            "engines": [dataclasses.asdict(each) for each in self.engines.effects],
            "memory": dataclasses.asdict(self.engines.memory),
            "max_blast_radius": dataclasses.asdict(self.radius),
            "findings": [dataclasses.asdict(each) for each in self.findings],
        }


def read_proposal(path: Path, against: Path | None) -> Proposal:
    """Raises ConfigUnreadable, or ConfigInvalid of either document."""
    checked = load_checked(path, os.environ, resolve_secrets=False)
    base = read_baseline(against, path) if against is not None else None
    proposed, baseline = checked.loaded, base.loaded if base else None
    changes = change_plan(baseline.config if baseline else None, proposed.config)
    engines = engine_plan(_local(base) if base else None, _local(checked))
    radius = blast_radius(baseline.config if baseline else None, changes, engines.disturbed)
    return Proposal(proposed, baseline, changes, engines, radius, _findings(proposed, changes, engines))


def read_baseline(against: Path, beside: Path) -> Checked:
    """An older state of the document at ``beside``: wherever the copy lies, its relative paths begin there."""
    try:
        with against.open("rb") as file:
            text = decode(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise ConfigUnreadable(str(against), error.strerror or str(error)) from None
    except ValueError as error:
        raise ConfigUnreadable(str(against), str(error)) from None
    try:
        checked = load_checked(beside, os.environ, resolve_secrets=False, text=text)
    except ConfigInvalid as error:
        problems = (
            dataclasses.replace(each, file=str(against)) if each.file == str(beside) else each
            for each in error.problems
        )
        raise ConfigInvalid(str(against), tuple(problems)) from None
    return dataclasses.replace(checked, loaded=dataclasses.replace(checked.loaded, path=against))


def _local(checked: Checked) -> Local:
    return Local(Foundation.of(checked, os.environ), checked.loaded)


def _findings(proposed: Loaded, changes: ChangePlan, engines: EnginePlan) -> tuple[Finding, ...]:
    warnings = [Finding("warning", each.path, each.reason, each.line) for each in proposed.warnings]
    fixed = "differs from the baseline and only a restart applies it; a running daemon refuses the document"
    restart = [Finding("warning", path, fixed) for path in changes.restart]
    return (*warnings, *restart, *(Finding("warning", path, reason) for path, reason in engines.doubts))
