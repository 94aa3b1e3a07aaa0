"""What the admin API needs of the daemon, as Protocols. The composition root hands the implementations in."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sbproxy.artifacts.core.model import ArtifactRecord, GcReport
from sbproxy.catalog.core.model import Catalog
from sbproxy.config.core.document import AdminConfig
from sbproxy.devices.core.model import Device
from sbproxy.keys.ports import KeyAdministration
from sbproxy.modelhost.core.desired_document import Replacement
from sbproxy.modelhost.core.jobs import JobId, JobRecord, StopKind
from sbproxy.modelhost.core.status import StatusRow
from sbproxy.modelhost.job_feed import Gap, JobEvent
from sbproxy.observe.core.record import RequestRecord
from sbproxy.observe.core.request_filter import RequestFilter
from sbproxy.observe.core.value import ValueReport
from sbproxy.observe.request_log import RequestFollower

HealthState = Literal["healthy", "degraded", "unhealthy", "not_configured"]


@dataclass(frozen=True, slots=True)
class DesiredMap:
    """The deployment map and who owns it. ``revision`` and ``content_digest`` only under ``admin_managed``."""

    authority: str
    deployments: Mapping[str, Mapping[str, Any]]
    revision: int | None = None
    content_digest: str | None = None

    @property
    def read_only(self) -> bool:
        return self.authority != "admin_managed"


@dataclass(frozen=True, slots=True)
class Replaced:
    """A stored and published map: its revision, and the deployment ids by what happened to them."""

    revision: int
    content_digest: str
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    preserved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """The verified artifacts of this machine; ``cache_root`` is None without a model host."""

    cache_root: str | None
    artifacts: Sequence[ArtifactRecord]


@dataclass(frozen=True, slots=True)
class ResetDone:
    """What ``reset`` left: the replica's state, and the job that recorded it."""

    state: str
    job_id: JobId | None


class ModelHostControl(Protocol):
    """The model host as an operator handles it. Actions raise a leaf of ModelHostError and return quickly."""

    def status(self) -> Sequence[StatusRow]: ...

    def runtime_revision(self) -> int:
        """Grows with every published desired state."""
        ...

    def authority(self) -> str:
        """Who owns the deployment map."""
        ...

    async def desired_map(self) -> DesiredMap:
        """Raises DesiredStoreFailed."""
        ...

    async def replace_deployments(self, replacement: Replacement) -> Replaced:
        """Store and publish a whole new map. Raises RuntimeCommitFailed when only the first came about, and for
        everything that refuses it a leaf of which nothing has changed."""
        ...

    def catalog(self) -> Catalog: ...

    async def load(self, deployment: str) -> JobId:
        """Start a deployment, or confirm that it is ready; the work goes on in the job."""
        ...

    async def stop(self, deployment: str, kind: StopKind = "stop") -> JobId:
        """Drain, then stop; the work goes on in the job, which is named by the ``kind`` that was asked for."""
        ...

    async def reset(self, deployment: str) -> ResetDone:
        """Clear a retained failure."""
        ...

    async def inventory(self) -> Inventory: ...


@dataclass(frozen=True, slots=True)
class PullBegun:
    """A pull that goes on in its job: what exactly is fetched."""

    model: str
    variant: str
    engine: str
    artifact_digest: str
    job_id: JobId


@dataclass(frozen=True, slots=True)
class RemovedArtifact:
    """``removed`` is false when somebody else was faster. Bytes."""

    artifact_digest: str
    removed: bool
    reclaimed_bytes: int
    job_id: JobId


class ArtifactOperations(Protocol):
    """What changes the artifact cache (contracts section 17)."""

    async def pull(self, model: str, variant: str | None, engine: str) -> PullBegun:
        """Bring a model into the cache; the work goes on in the job. Raises a leaf of CatalogError, or
        UnsafeArtifactPath."""
        ...

    async def remove(self, digest: str) -> RemovedArtifact:
        """Raises ArtifactAbsent, RemovalBlocked, StoreUnusable."""
        ...

    async def collect(self) -> GcReport:
        """Down to the configured budget. Raises NoCacheBudget, StoreUnusable."""
        ...


class Jobs(Protocol):
    """Durable jobs and their events. Implemented by ``sbproxy.modelhost.job_desk.JobDesk``."""

    async def get(self, job_id: JobId) -> JobRecord:
        """Raises UnknownJob."""
        ...

    async def list(self) -> Sequence[JobRecord]:
        """Oldest first."""
        ...

    async def cancel(self, job_id: JobId) -> JobRecord:
        """Ask a job to end, and return it as it stands. Raises UnknownJob or JobNotCancellable."""
        ...

    def follow(self, job_id: JobId | None, after: int | None) -> AsyncIterator[JobEvent | Gap]:
        """An asynchronous generator: what is kept after sequence ``after`` (None: all), then what comes."""
        ...


class RequestReader(Protocol):
    """The ring of finished requests."""

    max_entries: int

    def page(self, wanted: RequestFilter) -> list[RequestRecord]: ...

    def follow(self, after: int | None = None) -> RequestFollower: ...


@dataclass(frozen=True, slots=True)
class ReloadOutcome:
    """A load that took effect. ``loaded_at`` is Unix seconds; ``degraded`` names what did not come with it."""

    config_revision: str
    loaded_at: float
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DriftReport:
    """The file beside what was loaded from it."""

    config_path: str
    loaded_revision: str
    loaded_content_hash: str
    on_disk_content_hash: str
    on_disk_size_bytes: int


@dataclass(frozen=True, slots=True)
class ConfigText:
    """The file as the editor shows it, secrets masked, and the revision that is loaded."""

    yaml: str
    revision: str


@dataclass(frozen=True, slots=True)
class NewConfig:
    """A whole document to be stored and applied; ``if_match`` is the revision that its writer has seen loaded."""

    text: str = field(repr=False)
    if_match: str | None = None


class Reloader(Protocol):
    """The one reload transaction of the process."""

    config_path: str | None

    async def config_text(self) -> ConfigText:
        """Raises ReloadUnavailable or ConfigUnreadable."""
        ...

    async def replace_config(self, new: NewConfig) -> ReloadOutcome:
        """Apply a document and put it in the file's place. Raises ConfigMoved, ConfigNotWritten, and what ``reload``
        raises; only ConfigNotWritten can come after a change."""
        ...

    async def reload(self) -> ReloadOutcome:
        """Raises ReloadInFlight, ReloadUnavailable, or whatever refused the candidate; then nothing has changed."""
        ...

    async def drift(self) -> DriftReport:
        """Raises ReloadUnavailable or ConfigUnreadable."""
        ...


@dataclass(frozen=True, slots=True)
class ComponentHealth:
    """One component as the probes show it (contracts section 42). Only ``unhealthy`` fails a probe."""

    name: str
    status: HealthState
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class AdminDeps:
    """Everything that the admin application is built from. Streams beyond ``max_streams`` are refused, and
    beyond ``max_own_streams`` of one identity. ``keys`` None: key management is off."""

    config: AdminConfig
    host: ModelHostControl
    artifacts: ArtifactOperations
    jobs: Jobs
    requests: RequestReader
    reloader: Reloader
    health: Callable[[], Sequence[ComponentHealth]]
    metrics_text: Callable[[], bytes]
    value: Callable[[], ValueReport]
    devices: Callable[[], Sequence[Device]]
    build_hash: str = "unknown"
    started_at: float = field(default_factory=time.time)
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    heartbeat_s: float = 15.0
    max_streams: int = 32
    max_own_streams: int = 8
    keys: KeyAdministration | None = None
