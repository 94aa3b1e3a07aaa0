"""Values of the artifact store: states, intents, records, snapshots (contracts section 17)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sbproxy.catalog.core.model import ArtifactDigest

PullIntent = Literal["startup", "runtime", "explicit"]
"""Who asks: configuration at boot, a request, or an operator's own pull (which overrides ``manual``)."""

PullPhase = Literal["queued", "downloading", "verifying", "ready"]


@dataclass(frozen=True, slots=True)
class Missing:
    """Nothing of the artifact is here."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A resumable part is here."""

    completed_bytes: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Published and verified."""

    snapshot: Path


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Published once, damaged since; the next pull repairs it."""

    reason: str


ArtifactState = Missing | Partial | Ready | Corrupt


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Byte counts over the whole artifact. ``file`` is the file at work."""

    phase: PullPhase
    completed_bytes: int
    total_bytes: int
    file: str | None = None


ProgressSink = Callable[[PullProgress], None]
"""Called from the worker thread that pulls, at most about ten times a second; must not block."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A verified artifact on disk. ``path`` holds the files under their original names."""

    digest: ArtifactDigest
    path: Path
    verified_bytes: int
    fetched_bytes: int

    def file(self, relative: str) -> Path:
        return self.path / relative


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """One verified artifact in the inventory. Times are Unix milliseconds."""

    digest: ArtifactDigest
    logical_model: str
    variant_id: str
    format: str
    quant: str
    total_size_bytes: int
    license: str
    created_at_ms: int
    last_accessed_ms: int
    blobs: tuple[tuple[str, int], ...]
    """SHA-256 and bytes of every file."""


def distinct_bytes(records: Iterable[ArtifactRecord]) -> int:
    """What the artifacts hold together: a file that several of them share counts once."""
    return sum(dict(blob for record in records for blob in record.blobs).values())


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What ``prune`` found (and reclaimed, unless it was a dry run), in bytes."""

    dry_run: bool
    orphan_blobs: int
    reclaimed_bytes: int
    before_bytes: int


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a collection to the budget did, in bytes; shared blobs count once. Reasons stand by artifact digest.

    ``skipped_artifacts`` are those that were passed over on the way down to the budget.
    """

    before_bytes: int
    after_bytes: int
    reclaimed_bytes: int
    deleted_artifacts: tuple[str, ...]
    skipped_artifacts: Mapping[str, str]
    budget_unsatisfied_bytes: int


@dataclass(frozen=True, slots=True)
class Removal:
    """What ``remove`` did. ``removed`` is false when nothing of the artifact was here."""

    removed: bool
    reclaimed_bytes: int
