"""What the model host refuses, and why (document 1, "Admission and residency"; contracts section 19)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class ModelHostError(SbproxyError):
    """Branch: desired state, lifecycle and admission."""


@dataclass(eq=False)
class UnknownDeployment(ModelHostError):
    """No deployment of that id in the desired state. ``near`` holds the closest known ids."""

    code: ClassVar[str] = "unknown_deployment"
    deployment: str
    near: tuple[str, ...] = ()

    def text(self) -> str:
        hint = f"; did you mean {', '.join(self.near)}?" if self.near else ""
        return f"there is no deployment {self.deployment!r}{hint}"


@dataclass(eq=False)
class InvalidDesired(ModelHostError):
    """Desired state that this host cannot take on, told by the field at fault."""

    code: ClassVar[str] = "invalid_desired"
    deployment: str
    field: str
    reason: str

    def text(self) -> str:
        where = f"deployment {self.deployment}: {self.field}" if self.deployment else self.field
        return f"{where}: {self.reason}"


@dataclass(eq=False)
class UnknownJob(ModelHostError):
    """No retained job of that id."""

    code: ClassVar[str] = "unknown_job"
    job_id: str

    def text(self) -> str:
        return f"there is no job {self.job_id}; it never existed here or was pruned"


@dataclass(eq=False)
class AdmissionRejected(ModelHostError):
    """A request was not admitted. ``reason`` is one of the stable admission reasons of document 1:

    insufficient_capacity, queue_full, queue_timeout, engine_unhealthy, crash_loop, draining.
    """

    code: ClassVar[str] = "admission_rejected"
    deployment: str
    reason: str
    detail: str = ""
    retry_after_ms: int | None = None

    @property
    def may_retry(self) -> bool:
        """Whether the same request can succeed later without an operator's help."""
        return self.reason in ("queue_full", "queue_timeout", "draining")

    def text(self) -> str:
        tail = f": {self.detail}" if self.detail else ""
        return f"deployment {self.deployment} did not admit the request ({self.reason}){tail}"


@dataclass(eq=False)
class NoReadyReplica(ModelHostError):
    """``cold_start: reject`` met a deployment without a ready replica (document 1, dispatch)."""

    code: ClassVar[str] = "no_ready_replica"
    retryable: ClassVar[bool] = True
    deployment: str

    def text(self) -> str:
        return f"deployment {self.deployment} has no ready replica and its cold_start policy starts none"


def _amount(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"


@dataclass(eq=False)
class InsufficientMemory(ModelHostError):
    """The estimate does not fit the device; every term is kept so that the refusal can print them."""

    code: ClassVar[str] = "insufficient_capacity"
    deployment: str
    weight_bytes: int
    kv_bytes: int
    runtime_overhead_bytes: int
    safety_margin_bytes: int
    total_bytes: int
    free_bytes: int
    device: str
    detail: str = ""

    def text(self) -> str:
        tail = f"; {self.detail}" if self.detail else ""
        return (
            f"deployment {self.deployment} needs {_amount(self.total_bytes)} on {self.device}"
            f" (weights {_amount(self.weight_bytes)} + KV cache {_amount(self.kv_bytes)}"
            f" + overhead {_amount(self.runtime_overhead_bytes)} + margin {_amount(self.safety_margin_bytes)})"
            f" but {_amount(self.free_bytes)} are free{tail}"
        )


@dataclass(eq=False)
class ResetRefused(ModelHostError):
    """``reset`` on a generation that is healthy (contracts section 50)."""

    code: ClassVar[str] = "reset_refused"
    deployment: str
    state: str

    def text(self) -> str:
        return f"deployment {self.deployment} is {self.state}; reset only clears a failed or crash-looping one"


@dataclass(eq=False)
class FoundationChanged(ModelHostError):
    """Cache root, catalog revision or engine foundation changed under a resident deployment."""

    code: ClassVar[str] = "foundation_changed"
    field: str
    deployments: tuple[str, ...]

    def text(self) -> str:
        return (
            f"{self.field} cannot change while deployments are resident ({', '.join(self.deployments)});"
            " stop them or remove them from the desired state first"
        )


@dataclass(eq=False)
class JobStoreUnusable(ModelHostError):
    """The job database cannot be created, opened or brought to this version."""

    code: ClassVar[str] = "job_store_unusable"
    path: str
    reason: str

    def text(self) -> str:
        return f"job database {self.path}: {self.reason}; mend its folder, or move the file away to begin a new history"
