"""Looks at what lies in the store: blobs, partial folders, and which blobs somebody needs.

Callers hold the mutation lock, except for :meth:`Census.traces`; what to do with the findings is theirs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sbproxy.artifacts import locks
from sbproxy.artifacts.core.garbage import HeldBlob, HeldPartial
from sbproxy.artifacts.core.records import MAX_RECORD_BYTES, needed_blobs
from sbproxy.artifacts.core.source import is_sha256
from sbproxy.artifacts.disk import bytes_below, content, files_below, size_of
from sbproxy.artifacts.publication import Publication


class Census:
    """One look at a store that is there. Sizes are bytes."""

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self._paths = publication.paths

    def needed(self) -> set[str]:
        """Blobs of every published artifact and of every pull at work."""
        needed = self.needed_by_pulls()
        for digest in self._publication.digests():
            needed |= self._publication.needed_by(digest)
        return needed

    def needed_by_pulls(self) -> set[str]:
        """Blobs that pulls at work count on, fetched or not."""
        working = (name for name in self._partial_names() if locks.is_held(self._paths.pull_lock(name)))
        return set().union(*map(self.planned, working))

    def planned(self, digest: str) -> set[str]:
        """Blobs that the last pull of an artifact was going to need."""
        return needed_blobs(content(self._paths.plan(digest), MAX_RECORD_BYTES) or b"")

    def blobs(self) -> list[HeldBlob]:
        names = [path for path in self._paths.blobs.iterdir() if is_sha256(path.name)]
        return [HeldBlob(path.name, size_of(path) or 0) for path in names]

    def partials(self) -> list[HeldPartial]:
        names = self._partial_names()
        found = [self.partial(name, working=locks.is_held(self._paths.pull_lock(name))) for name in names]
        return [partial for partial in found if partial is not None]

    def partial(self, digest: str, *, working: bool) -> HeldPartial | None:
        """The partial folder of one artifact; ``None`` when there is none (any more)."""
        folder = self._paths.partial_folder(digest)
        newest = _newest(folder)
        if newest is None:
            return None
        # What is left beside a committed artifact will never be resumed, however young it is.
        idle = float("inf") if self._paths.record(digest).exists() else time.time() - newest
        return HeldPartial(digest, bytes_below(folder), idle, working)

    def uncommitted(self) -> Iterator[Path]:
        """Snapshots without a record: the pull was killed between the two, and what they link to counts as loose."""
        recorded = set(self._publication.digests())
        return (snapshot for snapshot in _digest_folders(self._paths.snapshots) if snapshot.name not in recorded)

    def traces(self, digest: str) -> tuple[Path, ...]:
        """Where something of an artifact may stand."""
        paths = self._paths
        return paths.record(digest), paths.damage_mark(digest), paths.snapshot(digest), paths.partial_folder(digest)

    def _partial_names(self) -> list[str]:
        return [folder.name for folder in _digest_folders(self._paths.partials)]


def _digest_folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if is_sha256(path.name) and path.is_dir())


def _newest(folder: Path) -> float | None:
    """When something last changed in a folder; ``None`` when it is gone."""
    moments = []
    for path in (folder, *files_below(folder)):
        with suppress(FileNotFoundError):
            moments.append(path.stat().st_mtime)
    return max(moments, default=None)
