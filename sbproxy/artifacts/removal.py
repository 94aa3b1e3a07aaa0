"""Takes artifacts and garbage out of the store. Nothing that is leased, being pulled or referred to ever goes."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

from sbproxy.artifacts import locks
from sbproxy.artifacts.core.garbage import PARTIAL_GRACE_S, HeldBlob, HeldPartial, abandoned, orphans
from sbproxy.artifacts.core.model import PruneReport, Removal
from sbproxy.artifacts.core.records import MAX_RECORD_BYTES, needed_blobs
from sbproxy.artifacts.core.source import is_sha256
from sbproxy.artifacts.disk import bytes_below, content, files_below, remove_tree, size_of
from sbproxy.artifacts.paths import StorePaths
from sbproxy.artifacts.publication import Publication
from sbproxy.errors.artifacts import RemovalBlocked

_LOCK_NAME = re.compile(r"(lease-|blob-|)([0-9a-f]{64})\.lock")


class Collector:
    """Removal and pruning, both under the mutation lock: what they decide on can't change below them."""

    def __init__(self, publication: Publication, partial_grace_s: float = PARTIAL_GRACE_S) -> None:
        self._publication = publication
        self._paths: StorePaths = publication.paths
        self._grace_s = partial_grace_s

    def remove(self, digest: str) -> Removal:
        """Remove one artifact, its partial bytes and the blobs that only it needed. Raises RemovalBlocked."""
        if not self._paths.present() or not any(path.exists() for path in self._traces(digest)):
            return Removal(removed=False, reclaimed_bytes=0)
        with (
            locks.exclusive(self._paths.mutation_lock),
            locks.attempt(self._paths.pull_lock(digest)) as idle,
            locks.attempt(self._paths.lease_lock(digest)) as unleased,
        ):
            if not unleased:
                raise RemovalBlocked(digest, "leased")
            if not idle:
                raise RemovalBlocked(digest, "locked")
            own = self._publication.needed_by(digest) | self._planned(digest)
            partial_bytes = bytes_below(self._paths.partial_folder(digest))
            self._publication.remove(digest)
            remove_tree(self._paths.partial_folder(digest))
            freed = sum(self._publication.drop_blob(sha) for sha in sorted(own - self._needed()))
        return Removal(removed=True, reclaimed_bytes=freed + partial_bytes)

    def prune(self, *, dry_run: bool) -> PruneReport:
        """Delete orphaned blobs, abandoned partials and what killed processes left staged. Bytes in the report."""
        if not self._paths.present():
            return PruneReport(dry_run=dry_run, orphan_blobs=0, reclaimed_bytes=0, before_bytes=0)
        self._paths.create()
        with locks.exclusive(self._paths.mutation_lock):
            blobs, partials = self._blobs(), self._partials()
            loose = orphans(blobs, self._needed())
            stale = abandoned(partials, self._grace_s)
            if not dry_run:
                stale = self._sweep(loose, stale)
        before = sum(blob.size_bytes for blob in blobs) + sum(partial.size_bytes for partial in partials)
        reclaimed = sum(blob.size_bytes for blob in loose) + sum(partial.size_bytes for partial in stale)
        return PruneReport(dry_run=dry_run, orphan_blobs=len(loose), reclaimed_bytes=reclaimed, before_bytes=before)

    def _sweep(self, loose: list[HeldBlob], stale: list[HeldPartial]) -> list[HeldPartial]:
        """Delete what was found; returns the partials that were still nobody's when their turn came."""
        self._publication.clear_leftovers()
        recorded = set(self._publication.digests())
        for snapshot in _digest_folders(self._paths.snapshots):
            # Published but never committed: the pull was killed in between, and the blobs below it count as loose.
            if snapshot.name not in recorded:
                with locks.attempt(self._paths.lease_lock(snapshot.name)) as unleased:
                    if unleased:
                        remove_tree(snapshot)
        for blob in loose:
            self._publication.drop_blob(blob.sha256)
        removed = [partial for partial in stale if self._remove_partial(partial.digest)]
        self._discard_locks()
        return removed

    def _remove_partial(self, digest: str) -> bool:
        """A pull needs no mutation lock to begin: it may have done so since we looked, and it may have ended, too."""
        with locks.attempt(self._paths.pull_lock(digest)) as idle:
            found = self._partial(digest, working=False) if idle else None
            if found is None or not abandoned([found], self._grace_s):
                return False
            remove_tree(self._paths.partial_folder(digest))
            return True

    def _discard_locks(self) -> None:
        """The lock files of absent artifacts, and of blobs, which are locked only while they are fetched."""
        for lock in self._paths.locks.iterdir():
            match = _LOCK_NAME.fullmatch(lock.name)
            if match and (match[1] == "blob-" or not any(path.exists() for path in self._traces(match[2]))):
                locks.discard(lock)

    def _needed(self) -> set[str]:
        """Blobs of every published artifact and of every pull at work."""
        needed: set[str] = set()
        for digest in self._publication.digests():
            needed |= self._publication.needed_by(digest)
        for folder in _digest_folders(self._paths.partials):
            if locks.is_held(self._paths.pull_lock(folder.name)):
                needed |= self._planned(folder.name)
        return needed

    def _planned(self, digest: str) -> set[str]:
        return needed_blobs(content(self._paths.plan(digest), MAX_RECORD_BYTES) or b"")

    def _blobs(self) -> list[HeldBlob]:
        names = [path for path in self._paths.blobs.iterdir() if is_sha256(path.name)]
        return [HeldBlob(path.name, size_of(path) or 0) for path in names]

    def _partials(self) -> list[HeldPartial]:
        names = [folder.name for folder in _digest_folders(self._paths.partials)]
        found = [self._partial(name, working=locks.is_held(self._paths.pull_lock(name))) for name in names]
        return [partial for partial in found if partial is not None]

    def _partial(self, digest: str, *, working: bool) -> HeldPartial | None:
        folder = self._paths.partial_folder(digest)
        newest = _newest(folder)
        if newest is None:
            return None
        # What is left beside a committed artifact will never be resumed, however young it is.
        idle = float("inf") if self._paths.record(digest).exists() else time.time() - newest
        return HeldPartial(digest, bytes_below(folder), idle, working)

    def _traces(self, digest: str) -> tuple[Path, ...]:
        paths = self._paths
        return paths.record(digest), paths.damage_mark(digest), paths.snapshot(digest), paths.partial_folder(digest)


def _digest_folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if is_sha256(path.name) and path.is_dir())


def _newest(folder: Path) -> float | None:
    """When something last changed in a folder; ``None`` when it is gone."""
    moments = []
    for path in (folder, *files_below(folder)):
        with suppress(FileNotFoundError):
            moments.append(path.stat().st_mtime)
    return max(moments, default=None)
