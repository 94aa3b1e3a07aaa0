"""Decides what a prune may take: blobs that nothing needs and partials that nobody works on any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

PARTIAL_GRACE_S = 24 * 3600.0
"""How long an interrupted pull is kept for its resume."""


@dataclass(frozen=True, slots=True)
class HeldBlob:
    """A blob in the store, in bytes."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HeldPartial:
    """The partial folder of one artifact. ``working``: some process holds its pull lock now."""

    digest: str
    size_bytes: int
    idle_s: float
    working: bool


def orphans(blobs: Iterable[HeldBlob], needed: Collection[str]) -> list[HeldBlob]:
    """Blobs outside ``needed`` (the files of every record and of every pull at work), in name order."""
    return sorted((blob for blob in blobs if blob.sha256 not in needed), key=lambda blob: blob.sha256)


def abandoned(partials: Iterable[HeldPartial], grace_s: float = PARTIAL_GRACE_S) -> list[HeldPartial]:
    return [partial for partial in partials if not partial.working and partial.idle_s >= grace_s]
