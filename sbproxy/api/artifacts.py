"""Messages of the artifact cache and of the memory and cache views (contracts sections 17 and 22)."""

from __future__ import annotations

from typing import Literal

from sbproxy.api.envelope import ApiAnswer, ApiRequest


class PullRequest(ApiRequest):
    """Body of ``POST /admin/model-host/pull``."""

    model: str
    variant: str | None = None
    engine: Literal["auto", "vllm", "sglang", "llama_cpp", "mistralrs"] = "auto"


class PullAccepted(ApiAnswer):
    """202: what exactly the job fetches."""

    schema_version: Literal[1] = 1
    model: str
    variant: str
    engine: str
    artifact_digest: str
    state: str = "queued"
    job_id: str
    poll_url: str


class RemovalAnswer(ApiAnswer):
    """200 of ``DELETE /admin/model-host/artifacts/{digest}``."""

    artifact_digest: str
    removed: bool
    reclaimed_bytes: int
    job_id: str


class GcAnswer(ApiAnswer):
    """200 of ``POST /admin/model-host/gc``: sizes in bytes, reasons by digest."""

    before_bytes: int
    after_bytes: int
    reclaimed_bytes: int
    deleted_artifacts: list[str]
    skipped_artifacts: dict[str, str]
    budget_unsatisfied_bytes: int


class NodeArtifacts(ApiAnswer):
    node_id: str
    total_bytes: int
    artifact_count: int
    snapshot_age_ms: int


class ModelArtifacts(ApiAnswer):
    logical_model: str
    total_bytes: int
    node_count: int


class ClusterArtifacts(ApiAnswer):
    """``GET /admin/cluster/artifacts``; without a cluster one node called ``local``."""

    schema_version: Literal[1] = 1
    nodes: list[NodeArtifacts]
    models: list[ModelArtifacts]
    partial: bool


class VramDevice(ApiAnswer):
    """``compute_utilization`` is left out while it is unknown."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    compute_utilization: float | None = None
    memory_occupancy: float


class NodeVram(ApiAnswer):
    budget_bytes: int
    used_bytes: int
    free_bytes: int
    devices: list[VramDevice]


class VramNode(ApiAnswer):
    node_id: str
    vram: NodeVram


class VramTotals(ApiAnswer):
    total_bytes: int
    used_bytes: int
    free_bytes: int
    device_count: int
    node_count: int


class ClusterVram(ApiAnswer):
    """``GET /admin/cluster/vram``; a node without a GPU is not among ``nodes``."""

    schema_version: Literal[1] = 1
    generated_at_unix_ms: int
    directory_collected_at_unix_ms: int
    cluster: VramTotals
    nodes: list[VramNode]
