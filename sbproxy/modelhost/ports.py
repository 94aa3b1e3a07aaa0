"""What the model host needs from others, as Protocols; the daemon hands the implementations in."""

from __future__ import annotations

import threading
from collections.abc import ItemsView
from contextlib import AbstractContextManager
from typing import Protocol

from sbproxy.artifacts.core.model import ArtifactRecord, ArtifactState, ProgressSink, PullIntent, Snapshot
from sbproxy.catalog.core.model import ArtifactDigest, PullPolicy, ResolvedArtifact
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.devices.core.model import Machine
from sbproxy.engines.driver import EngineDriver
from sbproxy.modelhost.core.jobs import JobId, JobRecord


class ArtifactStore(Protocol):
    """Blocking; called in worker threads. Implemented by ``sbproxy.artifacts.store.FileArtifactStore``."""

    def state(self, artifact: ResolvedArtifact) -> ArtifactState:
        """Cheap (sizes, not hashes): what is here of this artifact."""
        ...

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
        """Return a verified snapshot, fetching what is missing. Raises a leaf of ArtifactError; never half publishes.

        A verified cache hit is used under every policy; ``explicit`` overrides ``manual`` (contracts section 50).
        """
        ...

    def lease(self, digest: ArtifactDigest) -> AbstractContextManager[None]:
        """Hold the snapshot against removal by any process while an engine uses it."""
        ...

    def inventory(self) -> list[ArtifactRecord]:
        """All verified artifacts, oldest access first."""
        ...


class DeviceInventory(Protocol):
    """Implemented by ``sbproxy.devices.inventory.MachineInventory``."""

    def probe(self) -> Machine:
        """Blocking, quick: totals and free bytes at this moment."""
        ...


class EngineDrivers(Protocol):
    """The drivers of this host by engine name. Implemented by ``sbproxy.engines.registry.EngineDrivers``."""

    def items(self) -> ItemsView[str, EngineDriver]: ...

    def for_deployment(self, engine: str, deployment: DeploymentConfig) -> EngineDriver:
        """The driver of ``engine``, or one for the deployment's own ``engine_version``, ``engine_image`` or
        ``engine_sha256``. Raises EngineBlocked for an engine that this host has no driver of, or a contradiction."""
        ...


class JobStore(Protocol):
    """Durable job records. Blocking, safe from any thread; every method raises JobStoreUnusable when it cannot.

    Implemented by ``sbproxy.modelhost.job_store``.
    """

    @property
    def first_sequence(self) -> int:
        """The number for this process's first job event: above all that any process before it can have told."""
        ...

    def save(self, job: JobRecord) -> None:
        """Insert, or update what may change of a known id."""
        ...

    def get(self, job_id: JobId) -> JobRecord | None: ...

    def jobs(self) -> list[JobRecord]:
        """All retained jobs, oldest first."""
        ...


class HostMetrics(Protocol):
    """Counters the model host feeds (contracts section 40). Never raises, never blocks."""

    def admission_rejected(self, deployment: str, priority: str, reason: str) -> None: ...

    def launched(self, engine: str, model: str, outcome: str, seconds_to_ready: float | None) -> None: ...

    def ensure_failed(self, reason: str) -> None: ...

    def artifact_error(self, kind: str) -> None: ...

    def placement_rejected(self, deployment: str, reason: str) -> None:
        """An engine found no place on this machine, at its start or when a candidate was prepared."""
        ...

    def evicted(self, reason: str) -> None:
        """An engine was stopped to make room for another; an idle one that is unloaded is none."""
        ...

    def downloaded(self, fetched_bytes: int, seconds: float, *, failed: bool) -> None: ...
