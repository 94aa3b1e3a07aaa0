"""Raw references beside the store: a file is used where it lies, a repository is the engine's to fetch.

Nothing of them is copied, verified or collected, so what the store holds stays verified without exception.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sbproxy.artifacts.core.model import ArtifactState, Missing, Ready, Snapshot
from sbproxy.artifacts.disk import store_failures
from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.errors.artifacts import SourceNotFound

HUB_HOME: Final = "hf-home"
"""Folder under the cache root that engines may write what they fetch to."""


def unverified_state(artifact: ResolvedArtifact, root: Path) -> ArtifactState:
    """Ready for every repository, because only the engine knows what it still lacks."""
    place = _place(artifact, root)
    if artifact.variant.repository is None and not (place / artifact.variant.files[0].path).is_file():
        return Missing()
    return Ready(place)


def unverified_snapshot(artifact: ResolvedArtifact, root: Path) -> Snapshot:
    """The folder of the file, or the hub home for a repository, made when need be. Nothing counts as verified.

    Raises SourceNotFound, StoreUnusable.
    """
    state = unverified_state(artifact, root)
    if not isinstance(state, Ready):
        raise SourceNotFound(artifact.variant.files[0].path, artifact.variant.source)
    if artifact.variant.repository is not None:
        with store_failures(root):
            state.snapshot.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Snapshot(artifact.digest, state.snapshot, verified_bytes=0, fetched_bytes=0)


def _place(artifact: ResolvedArtifact, root: Path) -> Path:
    if artifact.variant.repository is not None:
        return root / HUB_HOME
    return Path(artifact.variant.source.removeprefix("file:")).parent
