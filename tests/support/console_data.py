"""Answers of the admin API for tests of the console."""

from __future__ import annotations

from typing import Any

from sbproxy.api.model_host import DeploymentStatus, HostStatus, Job, LocalServing, Progress


def row(**changes: Any) -> DeploymentStatus:
    values: dict[str, Any] = dict.fromkeys(DeploymentStatus.model_fields)
    values |= {
        "deployment": "smol", "replica": 0, "generation": 3, "state": "ready", "active_requests": 1,
        "queued_requests": 0, "max_concurrency": 2, "max_queue_depth": 8, "driver_availability": "available",
        "model": "smollm2", "variant": "q4_1", "engine": "llama_cpp", "selected_devices": [],
        "resident_bytes": 300 << 20,
    }  # fmt: skip
    return DeploymentStatus.model_validate(values | changes)


def status(*rows: DeploymentStatus) -> HostStatus:
    return HostStatus(
        serving=True, runtime_revision=1, deployments=list(rows), models=list(rows),
        local_serving=LocalServing(ready=True, blockers=[]),
    )  # fmt: skip


def job(**changes: Any) -> Job:
    values = {
        "id": "0" * 26, "kind": "pull", "subject": "smol", "state": "downloading",
        "progress": Progress(completed_bytes=10 << 20, total_bytes=20 << 20, current_file=None),
        "created_at_ms": 1, "updated_at_ms": 1, "terminal_at_ms": None, "error": None, "error_code": None,
    }  # fmt: skip
    return Job.model_validate(values | changes)
