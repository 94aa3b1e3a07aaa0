"""Takes artifacts and garbage out of the store. Nothing that is leased, being pulled or referred to ever goes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sbproxy.artifacts import locks
from sbproxy.artifacts.census import Census
from sbproxy.artifacts.core.garbage import PARTIAL_GRACE_S, HeldBlob, HeldPartial, abandoned, orphans
from sbproxy.artifacts.core.model import GcReport, PruneReport, Removal
from sbproxy.artifacts.core.sweep import DropBlob, DropPartial, Holding, RemoveArtifact, Step, Sweep
from sbproxy.artifacts.disk import bytes_below, remove_tree
from sbproxy.artifacts.paths import StorePaths
from sbproxy.artifacts.publication import Publication
from sbproxy.errors.artifacts import RemovalBlocked

_LOCK_NAME = re.compile(r"(lease-|blob-|)([0-9a-f]{64})\.lock")


class Collector:
    """Removal, pruning and collection, all under the mutation lock: what they decide on can't change below them."""

    def __init__(self, publication: Publication, partial_grace_s: float = PARTIAL_GRACE_S) -> None:
        self._publication = publication
        self._paths: StorePaths = publication.paths
        self._census = Census(publication)
        self._grace_s = partial_grace_s

    def remove(self, digest: str) -> Removal:
        """Remove one artifact, its partial bytes and the blobs that only it needed. Raises RemovalBlocked."""
        if not self._paths.present() or not any(path.exists() for path in self._census.traces(digest)):
            return Removal(removed=False, reclaimed_bytes=0)
        with locks.exclusive(self._paths.mutation_lock), self._taken(digest):
            own = self._publication.needed_by(digest) | self._census.planned(digest)
            partial_bytes = bytes_below(self._paths.partial_folder(digest))
            self._withdraw(digest)
            freed = sum(self._publication.drop_blob(sha) for sha in sorted(own - self._census.needed()))
        return Removal(removed=True, reclaimed_bytes=freed + partial_bytes)

    def prune(self, *, dry_run: bool) -> PruneReport:
        """Delete orphaned blobs, abandoned partials and what killed processes left staged. Bytes in the report."""
        if not self._paths.present():
            return PruneReport(dry_run=dry_run, orphan_blobs=0, reclaimed_bytes=0, before_bytes=0)
        self._paths.create()
        with locks.exclusive(self._paths.mutation_lock):
            blobs, partials = self._census.blobs(), self._census.partials()
            loose = orphans(blobs, self._census.needed())
            stale = abandoned(partials, self._grace_s)
            if not dry_run:
                stale = self._sweep(loose, stale)
        before = sum(blob.size_bytes for blob in blobs) + sum(partial.size_bytes for partial in partials)
        reclaimed = sum(blob.size_bytes for blob in loose) + sum(partial.size_bytes for partial in stale)
        return PruneReport(dry_run=dry_run, orphan_blobs=len(loose), reclaimed_bytes=reclaimed, before_bytes=before)

    def collect(self, budget_bytes: int, protected: Mapping[str, str]) -> GcReport:
        """Bring the store down to ``budget_bytes``. ``protected``: why an artifact must stay, by digest."""
        if not self._paths.present():
            return GcReport(0, 0, 0, (), {}, 0)
        self._paths.create()
        with locks.exclusive(self._paths.mutation_lock):
            sweep = Sweep(
                budget_bytes,
                blobs=self._census.blobs(),
                partials=self._census.partials(),
                holdings=[self._holding(digest, protected) for digest in self._publication.digests()],
                in_use=self._census.needed_by_pulls(),
                partial_grace_s=self._grace_s,
            )
            if sweep.over_budget:
                self._clear_uncommitted()
            while (step := sweep.next_step()) is not None:
                self._carry_out(step, sweep)
        return sweep.report()

    def _holding(self, digest: str, protected: Mapping[str, str]) -> Holding:
        record = self._publication.record(digest)
        # Whatever cannot be read can't serve anybody either, so it goes before everything that can.
        accessed = record.last_accessed_ms if record is not None else 0
        needed = frozenset(self._publication.needed_by(digest))
        return Holding(digest, accessed, needed, protected.get(digest))

    def _carry_out(self, step: Step, sweep: Sweep) -> None:
        match step:
            case DropBlob(sha256):
                self._publication.drop_blob(sha256)
            case DropPartial(digest):
                if not self._remove_partial(digest):
                    sweep.refused(step, "locked")
                    return
            case RemoveArtifact(digest, blobs):
                try:
                    with self._taken(digest):
                        self._withdraw(digest)
                        for sha256 in blobs:
                            self._publication.drop_blob(sha256)
                except RemovalBlocked as blocked:
                    sweep.refused(step, blocked.reason)
                    return
        sweep.done(step)

    @contextmanager
    def _taken(self, digest: str) -> Iterator[None]:
        """Hold the locks of an artifact that is to go. Raises RemovalBlocked: leased, locked or downloading."""
        with (
            locks.attempt(self._paths.pull_lock(digest)) as idle,
            locks.attempt(self._paths.lease_lock(digest)) as unleased,
        ):
            if not unleased:
                raise RemovalBlocked(digest, "leased")
            if not idle:
                raise RemovalBlocked(digest, "downloading" if self._paths.plan(digest).exists() else "locked")
            yield

    def _withdraw(self, digest: str) -> None:
        self._publication.remove(digest)
        remove_tree(self._paths.partial_folder(digest))

    def _sweep(self, loose: list[HeldBlob], stale: list[HeldPartial]) -> list[HeldPartial]:
        """Delete what was found; returns the partials that were still nobody's when their turn came."""
        self._clear_uncommitted()
        for blob in loose:
            self._publication.drop_blob(blob.sha256)
        removed = [partial for partial in stale if self._remove_partial(partial.digest)]
        self._discard_locks()
        return removed

    def _clear_uncommitted(self) -> None:
        """What killed processes staged, or published without committing it."""
        self._publication.clear_leftovers()
        for snapshot in self._census.uncommitted():
            with locks.attempt(self._paths.lease_lock(snapshot.name)) as unleased:
                if unleased:
                    remove_tree(snapshot)

    def _remove_partial(self, digest: str) -> bool:
        """A pull needs no mutation lock to begin: it may have done so since we looked, and it may have ended, too."""
        with locks.attempt(self._paths.pull_lock(digest)) as idle:
            found = self._census.partial(digest, working=False) if idle else None
            if found is None or not abandoned([found], self._grace_s):
                return False
            remove_tree(self._paths.partial_folder(digest))
            return True

    def _discard_locks(self) -> None:
        """The lock files of absent artifacts, and of blobs, which are locked only while they are fetched."""
        for lock in self._paths.locks.iterdir():
            match = _LOCK_NAME.fullmatch(lock.name)
            if match and (match[1] == "blob-" or not any(path.exists() for path in self._census.traces(match[2]))):
                locks.discard(lock)
