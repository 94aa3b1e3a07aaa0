"""The artifact store on a file system, shared by any number of processes (contracts section 17).

Blocking: called in worker threads and by the CLI. It decides who does what; pulling, publishing and removing
are done by ``pull``, ``publication`` and ``removal``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial as bind
from pathlib import Path

from sbproxy.artifacts import locks
from sbproxy.artifacts.core.foreign import Origin
from sbproxy.artifacts.core.garbage import PARTIAL_GRACE_S
from sbproxy.artifacts.core.model import (
    ArtifactRecord,
    ArtifactState,
    Corrupt,
    GcReport,
    Missing,
    ProgressSink,
    PruneReport,
    PullIntent,
    Ready,
    Removal,
    Snapshot,
)
from sbproxy.artifacts.core.policy import miss_refusal, pickle_refusal
from sbproxy.artifacts.core.source import check_files, check_sha256, parse_source
from sbproxy.artifacts.disk import store_failures
from sbproxy.artifacts.http_fetcher import Retry
from sbproxy.artifacts.partial import hash_file
from sbproxy.artifacts.paths import StorePaths
from sbproxy.artifacts.progress import PullTracker
from sbproxy.artifacts.publication import Publication
from sbproxy.artifacts.pull import Pull, Sources
from sbproxy.artifacts.removal import Collector
from sbproxy.artifacts.transport import HttpTransport, Timeouts
from sbproxy.artifacts.unverified import unverified_snapshot, unverified_state
from sbproxy.catalog.core.model import ArtifactDigest, CatalogFile, PullPolicy, ResolvedArtifact
from sbproxy.errors.artifacts import ArtifactError, CacheCorrupt, OfflineArtifactMissing, RemovalBlocked


class FileArtifactStore:
    """Implements ``sbproxy.modelhost.ports.ArtifactStore``. Creates nothing below ``root`` before it must write."""

    def __init__(
        self,
        root: Path,
        *,
        environ: Mapping[str, str],
        hub_url: str | None = None,
        retry: Retry | None = None,
        timeouts: Timeouts | None = None,
        partial_grace_s: float = PARTIAL_GRACE_S,
    ) -> None:
        self.paths = StorePaths(root)
        self._publication = Publication(self.paths)
        self._collector = Collector(self._publication, partial_grace_s)
        self._sources = Sources(
            environ=environ,
            hub_url=hub_url,
            transport=HttpTransport(timeouts or Timeouts()),
            retry=retry or Retry(),
        )

    def state(self, artifact: ResolvedArtifact) -> ArtifactState:
        """Cheap (sizes, not hashes): Missing, Partial, Ready or Corrupt. Raises StoreUnusable."""
        if artifact.variant.unverified:
            return unverified_state(artifact, self.paths.root)
        with store_failures(self.paths.root):
            return self._publication.state(artifact)

    def ensure(
        self,
        artifact: ResolvedArtifact,
        *,
        intent: PullIntent,
        policy: PullPolicy,
        network: bool = True,
        progress: ProgressSink | None = None,
        cancelled: threading.Event | None = None,
    ) -> Snapshot:
        """Return a verified snapshot, fetching what is missing. Raises a leaf of ArtifactError.

        Take the lease first: between this call's return and a later lease another process could remove it.
        """
        if artifact.variant.unverified:
            return unverified_snapshot(artifact, self.paths.root)
        self._check(artifact)
        tracker = PullTracker(artifact.subject, artifact.variant.total_size_bytes, progress, cancelled)
        tracker.check()
        hit = self._hit(artifact, tracker)
        if hit is not None:
            return hit
        refusal = miss_refusal(artifact, intent=intent, policy=policy, network=network)
        pull = Pull(artifact, self._publication, self._sources, tracker)
        with store_failures(self.paths.root, lambda: tracker.remaining_bytes):
            if refusal is not None and pull.missing() and not _may_import(refusal, pull):
                raise refusal
            self.paths.create()
            with locks.exclusive(self.paths.pull_lock(artifact.digest), tracker.queued):
                hit = self._hit(artifact, tracker)
                if hit is not None:
                    return hit
                repair = isinstance(self._publication.published_state(artifact.digest), Corrupt)
                return pull.run(repair=repair, refusal=refusal)

    @contextmanager
    def lease(self, digest: ArtifactDigest) -> Iterator[None]:
        """Hold the snapshot against removal by any process. May be taken before the artifact is here."""
        with ExitStack() as held:
            with store_failures(self.paths.root):
                self.paths.create()
                held.enter_context(locks.shared(self.paths.lease_lock(digest)))
            yield

    def inventory(self) -> list[ArtifactRecord]:
        """All verified artifacts whose files are in place, oldest access first. Raises StoreUnusable."""
        with store_failures(self.paths.root):
            if not self.paths.present():
                return []
            digests = self._publication.digests()
            ready = [digest for digest in digests if isinstance(self._publication.published_state(digest), Ready)]
            records = [record.summary() for record in map(self._publication.record, ready) if record is not None]
        return sorted(records, key=lambda record: (record.last_accessed_ms, record.digest))

    def verify(
        self,
        artifact: ResolvedArtifact,
        *,
        progress: ProgressSink | None = None,
        cancelled: threading.Event | None = None,
    ) -> Snapshot:
        """Hash every file again. Raises CacheCorrupt; damage is withdrawn first, so that the next ensure repairs it."""
        self._check(artifact)
        tracker = PullTracker(artifact.subject, artifact.variant.total_size_bytes, progress, cancelled)
        with store_failures(self.paths.root):
            match self._publication.published_state(artifact.digest):
                case None:
                    raise CacheCorrupt(artifact.subject, "no copy of it is here")
                case Corrupt(reason):
                    raise CacheCorrupt(artifact.subject, reason)
                case Ready(snapshot):
                    with self.lease(artifact.digest):
                        damaged = self._damaged_files(artifact.digest, artifact.variant.files, tracker)
            if damaged:
                self._withdraw(artifact, damaged)
                raise CacheCorrupt(artifact.subject, f"{', '.join(damaged)}: the bytes are not those of the catalog")
        tracker.ready()
        return Snapshot(artifact.digest, snapshot, artifact.variant.total_size_bytes, 0)

    def proof(self, digest: str, files: Sequence[CatalogFile]) -> ArtifactState:
        """Hash the published copy under ``digest``: Missing, Ready or Corrupt; nothing changes. StoreUnusable."""
        check_sha256(digest)
        tracker = PullTracker(digest, sum(file.size_bytes for file in files), None, None)
        with store_failures(self.paths.root):
            state = self._publication.published_state(digest)
            if not isinstance(state, Ready):
                return state or Missing()
            with self.lease(ArtifactDigest(digest)):
                damaged = self._damaged_files(digest, files, tracker)
        return Corrupt(f"{', '.join(damaged)}: not the bytes that belong there") if damaged else state

    def remove(self, digest: str, *, configured: bool = False, resident: bool = False) -> Removal:
        """Remove one artifact. Raises RemovalBlocked: configured, resident, leased, locked or downloading."""
        check_sha256(digest)
        for reason, protected in (("configured", configured), ("resident", resident)):
            if protected:
                raise RemovalBlocked(digest, reason)
        with store_failures(self.paths.root):
            return self._collector.remove(digest)

    def collect(self, budget_bytes: int, protected: Mapping[str, str]) -> GcReport:
        """Remove what was used least recently until the cache holds at most ``budget_bytes`` (contracts section 17).

        ``protected``: reason by digest. What is leased, locked or downloading anywhere stays too. Raises StoreUnusable.
        """
        with store_failures(self.paths.root):
            return self._collector.collect(budget_bytes, protected)

    def importable(self, artifact: ResolvedArtifact) -> Origin | None:
        """Whose cache could seed a pull without the network, going by sizes (contracts section 17). Blocking.

        Raises UnsafeArtifactPath, StoreUnusable.
        """
        if artifact.variant.unverified:
            return None
        tracker = PullTracker(artifact.subject, artifact.variant.total_size_bytes, None, None)
        with store_failures(self.paths.root):
            return Pull(artifact, self._publication, self._sources, tracker).importable()

    def prune(self, *, dry_run: bool = False) -> PruneReport:
        """Reclaim what no artifact and no pull at work refers to. Raises StoreUnusable."""
        with store_failures(self.paths.root):
            return self._collector.prune(dry_run=dry_run)

    def _check(self, artifact: ResolvedArtifact) -> None:
        check_sha256(artifact.digest)
        check_files(artifact.variant.files)
        parse_source(artifact.variant)
        refusal = pickle_refusal(artifact)
        if refusal is not None:
            raise refusal

    def _hit(self, artifact: ResolvedArtifact, tracker: PullTracker) -> Snapshot | None:
        with store_failures(self.paths.root):
            state = self._publication.published_state(artifact.digest)
        if not isinstance(state, Ready):
            return None
        self._touch(artifact.digest)
        tracker.ready()
        return Snapshot(artifact.digest, state.snapshot, artifact.variant.total_size_bytes, 0)

    def _touch(self, digest: str) -> None:
        """Note the access. Best effort: a read-only store still serves hits, and a busy one is not waited for."""
        with suppress(OSError), locks.attempt(self.paths.mutation_lock) as free:
            record = self._publication.record(digest) if free else None
            if record is not None:
                self._publication.write_record(record.accessed(time.time_ns() // 1_000_000))

    def _damaged_files(self, digest: str, files: Sequence[CatalogFile], tracker: PullTracker) -> list[str]:
        snapshot = self.paths.snapshot(digest)
        damaged = []
        for file in files:
            found = hash_file(snapshot / file.path, bind(tracker.verifying, file.path))
            if found != (file.size_bytes, file.sha256):
                damaged.append(file.path)
            tracker.verified(file.size_bytes)
        return damaged

    def _withdraw(self, artifact: ResolvedArtifact, damaged: list[str]) -> None:
        """Mark this artifact, and every other one that shares a damaged blob, and drop those blobs."""
        bad = {file.sha256 for file in artifact.variant.files if file.path in damaged}
        with locks.exclusive(self.paths.mutation_lock):
            for digest in self._publication.digests():
                if digest == artifact.digest or bad & self._publication.needed_by(digest):
                    self._publication.mark_damaged(digest, f"a full check found damaged files: {', '.join(damaged)}")
            for sha in sorted(bad):
                self._publication.drop_blob(sha)


def _may_import(refusal: ArtifactError, pull: Pull) -> bool:
    """``--offline`` forbids the network, not the caches of other programs on this machine."""
    return isinstance(refusal, OfflineArtifactMissing) and pull.importable() is not None
