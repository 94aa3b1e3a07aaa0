"""Takes artifacts and garbage out of the store. Nothing that is leased, being pulled or referred to ever goes."""

from __future__ import annotations

import time
from pathlib import Path

from sbproxy.artifacts import locks
from sbproxy.artifacts.core.garbage import PARTIAL_GRACE_S, HeldBlob, HeldPartial, abandoned, orphans
from sbproxy.artifacts.core.model import PruneReport, Removal
from sbproxy.artifacts.core.records import needed_blobs
from sbproxy.artifacts.disk import remove_tree, size_of
from sbproxy.artifacts.paths import StorePaths
from sbproxy.artifacts.publication import Publication
from sbproxy.errors.artifacts import RemovalBlocked

_DIGEST_LENGTH = 64


class Collector:
    """Removal and pruning, both under the mutation lock: what they decide on can't change below them."""

    def __init__(self, publication: Publication, partial_grace_s: float = PARTIAL_GRACE_S) -> None:
        self._publication = publication
        self._paths: StorePaths = publication.paths
        self._grace_s = partial_grace_s

    def remove(self, digest: str) -> Removal:
        """Remove one artifact, its partial bytes and the blobs that only it needed. Raises RemovalBlocked."""
        if not any(path.exists() for path in self._traces(digest)):
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
            partial_bytes = _tree_bytes(self._paths.partial_folder(digest))
            self._publication.remove(digest)
            remove_tree(self._paths.partial_folder(digest))
            freed = sum(self._publication.drop_blob(sha) for sha in sorted(own - self._needed()))
        return Removal(removed=True, reclaimed_bytes=freed + partial_bytes)

    def prune(self, *, dry_run: bool) -> PruneReport:
        """Delete orphaned blobs, abandoned partials and what killed processes left staged. Bytes in the report."""
        if not self._paths.root.is_dir():
            return PruneReport(dry_run=dry_run, orphan_blobs=0, reclaimed_bytes=0, before_bytes=0)
        self._paths.create()
        with locks.exclusive(self._paths.mutation_lock):
            blobs, partials = self._blobs(), self._partials()
            loose = orphans(blobs, self._needed())
            stale = abandoned(partials, self._grace_s)
            if not dry_run:
                self._sweep(loose, stale)
        before = sum(blob.size_bytes for blob in blobs) + sum(partial.size_bytes for partial in partials)
        reclaimed = sum(blob.size_bytes for blob in loose) + sum(partial.size_bytes for partial in stale)
        return PruneReport(dry_run=dry_run, orphan_blobs=len(loose), reclaimed_bytes=reclaimed, before_bytes=before)

    def _sweep(self, loose: list[HeldBlob], stale: list[HeldPartial]) -> None:
        self._publication.clear_leftovers()
        recorded = set(self._publication.digests())
        for snapshot in _digest_folders(self._paths.snapshots):
            # Published but never committed: the pull was killed in between, and the blobs below it count as loose.
            if snapshot.name not in recorded and not locks.is_held(self._paths.lease_lock(snapshot.name)):
                remove_tree(snapshot)
        for blob in loose:
            self._publication.drop_blob(blob.sha256)
        for partial in stale:
            remove_tree(self._paths.partial_folder(partial.digest))

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
        try:
            return needed_blobs(self._paths.plan(digest).read_bytes())
        except FileNotFoundError:
            return set()

    def _blobs(self) -> list[HeldBlob]:
        names = [path for path in self._paths.blobs.iterdir() if len(path.name) == _DIGEST_LENGTH]
        return [HeldBlob(path.name, size_of(path) or 0) for path in names]

    def _partials(self) -> list[HeldPartial]:
        recorded = set(self._publication.digests())
        now = time.time()
        found = []
        for folder in _digest_folders(self._paths.partials):
            # What is left beside a committed artifact will never be resumed, however young it is.
            idle = float("inf") if folder.name in recorded else now - _newest(folder)
            working = locks.is_held(self._paths.pull_lock(folder.name))
            found.append(HeldPartial(folder.name, _tree_bytes(folder), idle, working))
        return found

    def _traces(self, digest: str) -> tuple[Path, ...]:
        paths = self._paths
        return paths.record(digest), paths.damage_mark(digest), paths.snapshot(digest), paths.partial_folder(digest)


def _digest_folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if len(path.name) == _DIGEST_LENGTH and path.is_dir())


def _tree_bytes(folder: Path) -> int:
    return sum(size_of(path) or 0 for path in folder.rglob("*"))


def _newest(folder: Path) -> float:
    moments = []
    for path in (folder, *folder.rglob("*")):
        try:
            moments.append(path.stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(moments, default=0.0)
