"""Decides whether a cache miss may be fetched: intent, pull policy, network (contracts sections 17 and 50)."""

from __future__ import annotations

from pathlib import PurePosixPath

from sbproxy.artifacts.core.model import PullIntent
from sbproxy.artifacts.core.source import LocalFiles, parse_source
from sbproxy.catalog.core.model import PullPolicy, ResolvedArtifact
from sbproxy.errors.artifacts import (
    ArtifactError,
    ManualArtifactMissing,
    OfflineArtifactMissing,
    PickleRefused,
    PickleUnsafe,
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

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl"})


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


def pickle_refusal(artifact: ResolvedArtifact) -> ArtifactError | None:
    """Pickle runs code when it is loaded: refused without the opt-in, and with it until there is a scan."""
    suffixes = {PurePosixPath(file.path).suffix.lower() for file in artifact.variant.files}
    if artifact.variant.format != "pickle" and not suffixes & PICKLE_SUFFIXES:
        return None
    if not artifact.model.allow_pickle:
        return PickleRefused(artifact.subject)
    return PickleUnsafe(artifact.subject)
