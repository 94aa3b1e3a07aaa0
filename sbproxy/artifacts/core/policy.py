"""Decides whether a cache miss may be fetched: intent, pull policy, network (contracts sections 17 and 50)."""

from __future__ import annotations

from pathlib import PurePosixPath

from sbproxy.artifacts.core.model import PullIntent
from sbproxy.artifacts.core.source import LocalFiles, parse_source
from sbproxy.catalog.core.model import CatalogFile, PullPolicy, ResolvedArtifact
from sbproxy.errors.artifacts import (
    ArtifactError,
    ManualArtifactMissing,
    OfflineArtifactMissing,
    PickleRefused,
    StartupArtifactNotSelected,
)

MISS: dict[tuple[PullIntent, PullPolicy], type[ManualArtifactMissing | StartupArtifactNotSelected] | None] = {
    ("startup", "on_boot"): None,
    ("startup", "on_demand"): StartupArtifactNotSelected,
    ("startup", "manual"): ManualArtifactMissing,
    ("runtime", "on_boot"): None,
    ("runtime", "on_demand"): None,
    ("runtime", "manual"): ManualArtifactMissing,
    ("explicit", "on_boot"): None,
    ("explicit", "on_demand"): None,
    ("explicit", "manual"): None,
}
"""What a miss means; ``None`` fetches."""

PICKLE_SUFFIXES = frozenset({".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"})


def miss_refusal(
    artifact: ResolvedArtifact, *, intent: PullIntent, policy: PullPolicy, network: bool
) -> ArtifactError | None:
    """The error that a cache miss ends in, or ``None`` when it may be fetched. A ``file:`` source is no network."""
    leaf = MISS[intent, policy]
    if leaf is not None:
        return leaf(artifact.subject)
    if not network and not isinstance(parse_source(artifact.variant), LocalFiles):
        return OfflineArtifactMissing(artifact.subject)
    return None


def pickle_files(artifact: ResolvedArtifact) -> list[CatalogFile]:
    """The files that a loader would unpickle, whatever the format says."""
    return [file for file in artifact.variant.files if PurePosixPath(file.path).suffix.lower() in PICKLE_SUFFIXES]


def pickle_refusal(artifact: ResolvedArtifact) -> ArtifactError | None:
    """Pickle runs code when it is loaded: refused without the opt-in. With it, a scan decides before publication."""
    if artifact.variant.format != "pickle" and not pickle_files(artifact):
        return None
    return None if artifact.model.allow_pickle else PickleRefused(artifact.subject)
