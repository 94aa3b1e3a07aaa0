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

    where: str = ""
    """The caller's place in the queue, which is no secret to it, as the names of other deployments are."""

    @property
    def may_retry(self) -> bool:
        """Whether the same request can succeed later without an operator's help."""
        return self.reason in ("queue_full", "queue_timeout", "draining")

    def text(self) -> str:
        tail = f": {self.detail}" if self.detail else ""
        return f"deployment {self.deployment} did not admit the request ({self.reason}){tail}"


@dataclass(eq=False)
class NoReadyReplica(ModelHostError):
    """A deployment that requests may not start has no ready replica (document 1, dispatch).

    ``fallback``: its cold_start policy sends them to the next provider of the route.
    """

    code: ClassVar[str] = "no_ready_replica"
    retryable: ClassVar[bool] = True
    deployment: str
    fallback: bool = False

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
    holders: tuple[str, ...] = ()
    """What holds the memory: deployments with what each of them has."""
    retry_after_ms: int | None = None
    """None where waiting alone cures nothing."""
    most_models: int | None = None
    """The number of models that may be resident, where that and no memory refused."""

    @property
    def may_retry(self) -> bool:
        """Whether the same request can succeed later without an operator's help."""
        return self.retry_after_ms is not None

    @property
    def where(self) -> str:
        """The estimate against what is free, without the names of others."""
        if self.most_models is not None:
            return f"as many models run as may at once, {self.most_models}"
        return f"it needs {_amount(self.total_bytes)}, {_amount(self.free_bytes)} are free"

    def text(self) -> str:
        tail = f"; {self.detail}" if self.detail else ""
        if self.holders:
            tail += f"; held by {', '.join(self.holders)}"
        return (
            f"deployment {self.deployment} needs {_amount(self.total_bytes)} on {self.device}"
            f" (weights {_amount(self.weight_bytes)} + KV cache {_amount(self.kv_bytes)}"
            f" + overhead {_amount(self.runtime_overhead_bytes)} + margin {_amount(self.safety_margin_bytes)})"
            f" but {_amount(self.free_bytes)} are free{tail}"
        )


@dataclass(eq=False)
class HandoffTimedOut(ModelHostError):
    """A rolling replacement was not ready in time; the old generation goes on."""

    code: ClassVar[str] = "handoff_timeout"
    retryable: ClassVar[bool] = True
    deployment: str
    timeout_ms: int

    def text(self) -> str:
        return (
            f"the new generation of {self.deployment} was not ready within handoff_timeout_ms ({self.timeout_ms});"
            " the old one keeps serving: raise the time-out, or use rollout: recreate where there is no room for both"
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
class JobNotCancellable(ModelHostError):
    """A job that has ended, or whose work cannot be taken back. ``reason`` says which, and what to do instead."""

    code: ClassVar[str] = "job_not_cancellable"
    job_id: str
    kind: str
    reason: str

    def text(self) -> str:
        return f"{self.kind} job {self.job_id} cannot be cancelled: {self.reason}"


@dataclass(eq=False)
class JobStoreUnusable(ModelHostError):
    """The job database cannot be created, opened, read, written or brought to this version."""

    code: ClassVar[str] = "job_store_unusable"
    path: str
    reason: str

    def text(self) -> str:
        return f"job database {self.path}: {self.reason}; mend its folder, or move the file away to begin a new history"


@dataclass(eq=False)
class RevisionConflict(ModelHostError):
    """The durable deployment map is not at the revision that a replacement was written against (None: nothing yet)."""

    code: ClassVar[str] = "revision_conflict"
    expected_revision: int | None
    actual_revision: int | None

    def text(self) -> str:
        expected, actual = (_revision(each) for each in (self.expected_revision, self.actual_revision))
        return (
            f"the deployment map is at {actual}, this replacement expects {expected};"
            " read it again (GET /admin/model-host/deployments), compare, and send the map with that revision"
        )


def _revision(revision: int | None) -> str:
    return "no revision yet (null)" if revision is None else f"revision {revision}"


@dataclass(eq=False)
class DesiredStoreFailed(ModelHostError):
    """The store of admin-managed deployments cannot be opened, read or written in time. Nothing has changed."""

    code: ClassVar[str] = "store_failed"
    retryable: ClassVar[bool] = True
    path: str
    reason: str

    def text(self) -> str:
        return f"deployment store {self.path} (proxy.model_host.store_path): {self.reason}"


@dataclass(eq=False)
class RuntimeCommitFailed(ModelHostError):
    """The new revision is durable, the runtime did not take it on. What kept it from that stands in the log."""

    code: ClassVar[str] = "runtime_commit_failed"
    revision: int
    content_digest: str

    def text(self) -> str:
        return (
            f"revision {self.revision} is stored, but the runtime did not take it on; read the deployments, the status"
            f" and the server's log, then send a corrected map with expected_revision {self.revision}"
        )


@dataclass(eq=False)
class CatalogFenced(ModelHostError):
    """The catalog would change under a stored, non-empty deployment map (document 1, "Reload behavior")."""

    code: ClassVar[str] = "catalog_fenced"
    stored_catalog: str
    wanted_catalog: str
    deployments: tuple[str, ...]

    def text(self) -> str:
        named = ", ".join(self.deployments[:5]) + (", …" if len(self.deployments) > 5 else "")
        return (
            f"the deployment store holds {named} for catalog {self.stored_catalog}, and catalog_file now says"
            f" {self.wanted_catalog}; put the old catalog back, replace the map with an empty one"
            " (PUT /admin/model-host/deployments), change the catalog, reload, and send the map again"
        )
