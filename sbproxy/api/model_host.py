"""Messages of ``/admin/model-host/*`` (document 2, "Model host admin"; contracts sections 17 to 19)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from sbproxy.api.envelope import ApiAnswer, ApiRequest


class LifecycleRequest(ApiRequest):
    """``{"deployment": "<id>"}``; the older key ``model`` still names the same thing."""

    deployment: str

    @model_validator(mode="before")
    @classmethod
    def _accept_model(cls, value: Any) -> Any:
        if isinstance(value, dict) and "deployment" not in value and "model" in value:
            return {"deployment": value["model"], **{k: v for k, v in value.items() if k != "model"}}
        return value


class LifecycleAccepted(ApiAnswer):
    """202 of load, stop, drain and evict."""

    schema_version: Literal[1] = 1
    deployment: str
    state: str = "queued"
    job_id: str
    poll_url: str


class ResetAnswer(ApiAnswer):
    """200 of reset: synchronous (contracts section 0, row 2)."""

    deployment: str
    state: str
    job_id: str | None


class Memory(ApiAnswer):
    """The estimate, all terms in bytes per device."""

    device_indexes: list[int]
    weight_bytes: int
    kv_bytes: int
    runtime_overhead_bytes: int
    safety_margin_bytes: int
    total_bytes: int


class DeploymentStatus(ApiAnswer):
    """One replica row of the status answer."""

    deployment: str
    replica: int
    generation: int
    state: str
    active_requests: int
    queued_requests: int
    max_concurrency: int
    max_queue_depth: int
    engine: str | None
    engine_version: str | None
    driver_availability: str
    model: str
    variant: str | None
    artifact_digest: str | None
    selected_devices: list[int]
    memory: Memory | None
    resident_bytes: int | None
    port: int | None
    pid: int | None
    reason_code: str | None
    job_id: str | None
    last_error: str | None
    keep_alive_secs: int | None
    expires_at_ms: int | None
    stop_cause: str | None


class LocalServing(ApiAnswer):
    ready: bool
    blockers: list[str]
    recommendation: str | None = None


class HostStatus(ApiAnswer):
    """``GET /admin/model-host/status``. ``models`` repeats ``deployments`` (contracts section 19)."""

    schema_version: Literal[1] = 1
    serving: bool
    runtime_revision: int
    deployments: list[DeploymentStatus]
    models: list[DeploymentStatus]
    local_serving: LocalServing


class CatalogVariant(ApiAnswer):
    id: str
    format: str
    quant: str
    engines: list[str]
    accelerators: list[str]
    min_memory_bytes: int | None
    download_size_bytes: int
    certification: str
    stability: str


class CatalogEntry(ApiAnswer):
    params: str
    license: str
    family: str
    context_length: int | None
    modality: str
    variants: list[CatalogVariant]


class CatalogAnswer(ApiAnswer):
    """``GET /admin/model-host/catalog``; schema 1 of the answer, not of the catalog document."""

    schema_version: Literal[1] = 1
    catalog_revision: str
    models: dict[str, CatalogEntry]


class DeploymentsAnswer(ApiAnswer):
    """``GET /admin/model-host/deployments``: desired state with its write boundary."""

    schema_version: Literal[1] = 1
    authority: str
    read_only: bool
    revision: int | None
    content_digest: str | None
    deployments: dict[str, dict[str, Any]]


class ReplaceDeployments(ApiRequest):
    """Body of ``PUT /admin/model-host/deployments``: the complete new map, and the revision it was written against.

    ``expected_revision`` is sent even where it is null, which means that nothing was stored yet.
    """

    expected_revision: int | None
    deployments: dict[str, dict[str, Any]]


class DeploymentPlan(ApiAnswer):
    """Deployment ids by what a new map does to them."""

    added: list[str]
    changed: list[str]
    removed: list[str]
    preserved: list[str]


class DeploymentsReplaced(ApiAnswer):
    """200 of the replacement: stored and published."""

    schema_version: Literal[1] = 1
    revision: int
    content_digest: str
    plan: DeploymentPlan


class CachedArtifact(ApiAnswer):
    logical_model: str
    variant_id: str
    artifact_digest: str
    total_size_bytes: int
    last_accessed_ms: int
    resident: bool


class FilesAnswer(ApiAnswer):
    """``GET /admin/model-host/files``; ``cache_root`` is null without a model host."""

    schema_version: Literal[1] = 1
    cache_root: str | None
    total_bytes: int
    artifacts: list[CachedArtifact]


class Progress(ApiAnswer):
    completed_bytes: int
    total_bytes: int | None
    current_file: str | None


class Job(ApiAnswer):
    """One durable job (contracts section 18)."""

    id: str
    kind: str
    subject: str
    state: str
    progress: Progress
    created_at_ms: int
    updated_at_ms: int
    terminal_at_ms: int | None
    error: str | None
    error_code: str | None
    note: str | None = None
    """What a job that ended well has to tell, such as answers that a drain had to cut."""

    @property
    def terminal(self) -> bool:
        return self.state in ("ready", "failed", "deleted")


class JobsAnswer(ApiAnswer):
    """``GET /admin/model-host/jobs``: oldest first."""

    schema_version: Literal[1] = 1
    jobs: list[Job]


class JobAnswer(ApiAnswer):
    schema_version: Literal[1] = 1
    job: Job
