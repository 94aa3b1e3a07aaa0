"""Values that the model host shows to others: states, memory estimate, status rows (contracts sections 15, 19)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReplicaState = Literal["configured", "assigned", "cached", "preparing", "ready", "draining", "stopped", "failed"]
Priority = Literal["interactive", "standard", "batch"]
PRIORITIES: tuple[Priority, ...] = ("interactive", "standard", "batch")
"""Dispatch order (contracts section 8)."""

AdmissionReason = Literal[
    "insufficient_capacity", "queue_full", "queue_timeout", "engine_unhealthy", "crash_loop", "draining"
]


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """All terms in bytes, per device (contracts section 15)."""

    device_indexes: tuple[int, ...]
    weight_bytes: int
    kv_bytes: int
    runtime_overhead_bytes: int
    safety_margin_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.runtime_overhead_bytes + self.safety_margin_bytes


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One replica of one deployment as ``GET /admin/model-host/status`` shows it."""

    deployment: str
    replica: int
    generation: int
    state: ReplicaState
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
    selected_devices: tuple[int, ...]
    memory: MemoryEstimate | None
    resident_bytes: int | None
    """Measured memory of the engine process, beside the estimate (field report 46)."""
    port: int | None
    pid: int | None
    reason_code: str | None
    job_id: str | None
    last_error: str | None
    keep_alive_secs: int | None
    expires_at_ms: int | None
    stop_cause: str | None


@dataclass(frozen=True, slots=True)
class Availability:
    """What ``/v1/models`` says about a managed model: no node, port or engine detail."""

    state: Literal["ready", "cold", "unavailable"]
    ready_replicas: int
    desired_replicas: int
