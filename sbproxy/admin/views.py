"""How domain values look on the wire: pure translations into ``sbproxy.api`` messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from sbproxy.admin.ports import ComponentHealth, DesiredMap, DriftReport, Inventory, ReloadOutcome, Replaced
from sbproxy.api.control import DriftAnswer, HealthCheck, ReloadAnswer, RequestEntry
from sbproxy.api.model_host import (
    CachedArtifact,
    CatalogAnswer,
    CatalogEntry,
    CatalogVariant,
    DeploymentPlan,
    DeploymentsAnswer,
    DeploymentsReplaced,
    DeploymentStatus,
    FilesAnswer,
    HostStatus,
    Job,
    LocalServing,
    Memory,
    Progress,
)
from sbproxy.artifacts.core.model import distinct_bytes
from sbproxy.catalog.core.model import Catalog, CatalogModel, Variant
from sbproxy.errors import SbproxyError
from sbproxy.errors.modelhost import RevisionConflict, RuntimeCommitFailed
from sbproxy.modelhost.core.jobs import JobRecord
from sbproxy.modelhost.core.status import MemoryEstimate, StatusRow
from sbproxy.observe.core.record import RequestRecord
from sbproxy.observe.core.redact import Redactor
from sbproxy.observe.core.scrub import scrub

TEXT_LIMIT = 256
ERROR_LIMIT = 1024

# Job errors and engine errors are other programs' words: a bearer value in them is masked (contracts section 18).
_MASK = Redactor().redact

_SERVABLE = frozenset({"available", "acquirable"})
_RECOMMENDATIONS = {
    "no_deployments": "add a deployment under proxy.model_host.deployments in sb.yml and reload",
    "engine_incompatible": "run sbproxy doctor to see what this machine lacks",
    "engine_blocked": "complete the engine's pin under proxy.model_host.engines in sb.yml",
    "crash_loop": "correct the cause, then reset the deployment",
    "insufficient_capacity": "choose a smaller variant, or reduce context or concurrency",
}


def rfc3339(seconds: float) -> str:
    """UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job(record: JobRecord) -> Job:
    progress = record.progress
    return Job(
        id=record.id,
        kind=record.kind,
        subject=scrub(record.subject, 512),
        state=record.state,
        progress=Progress(
            completed_bytes=progress.completed_bytes,
            total_bytes=progress.total_bytes,
            current_file=progress.current_file,
        ),
        created_at_ms=record.created_at_ms,
        updated_at_ms=record.updated_at_ms,
        terminal_at_ms=record.terminal_at_ms,
        error=_foreign(record.error),
        error_code=record.error_code,
        note=_foreign(record.note),
    )


def host_status(rows: Sequence[StatusRow], runtime_revision: int) -> HostStatus:
    """``models`` repeats ``deployments``."""
    shown = [_deployment(row) for row in rows]
    return HostStatus(
        serving=any(row.state == "ready" for row in rows),
        runtime_revision=runtime_revision,
        deployments=shown,
        models=shown,
        local_serving=local_serving(rows),
    )


def local_serving(rows: Sequence[StatusRow]) -> LocalServing:
    """Whether this machine can serve at least one deployment, now or after a cold start, and what is in the way."""
    able = [row for row in rows if row.state != "failed" and row.driver_availability in _SERVABLE]
    if able:
        return LocalServing(ready=True, blockers=[])
    blockers = sorted({_blocker(row) for row in rows}) or ["no_deployments"]
    advice = next((_RECOMMENDATIONS[word] for word in blockers if word in _RECOMMENDATIONS), None)
    return LocalServing(ready=False, blockers=blockers, recommendation=advice)


def catalog(document: Catalog) -> CatalogAnswer:
    return CatalogAnswer(
        catalog_revision=_bounded(document.catalog_revision),
        models={model_id: _model(model) for model_id, model in document.models.items()},
    )


def desired_map(state: DesiredMap) -> DeploymentsAnswer:
    return DeploymentsAnswer(
        authority=state.authority,
        read_only=state.read_only,
        revision=state.revision,
        content_digest=state.content_digest,
        deployments={name: dict(fields) for name, fields in state.deployments.items()},
    )


def replaced(done: Replaced) -> DeploymentsReplaced:
    plan = DeploymentPlan(
        added=list(done.added),
        changed=list(done.changed),
        removed=list(done.removed),
        preserved=list(done.preserved),
    )
    return DeploymentsReplaced(revision=done.revision, content_digest=done.content_digest, plan=plan)


def refusal_fields(error: SbproxyError) -> dict[str, Any]:
    """What a refused replacement says beside its code (contracts section 49)."""
    if isinstance(error, RevisionConflict):
        return {"expected_revision": error.expected_revision, "actual_revision": error.actual_revision}
    if isinstance(error, RuntimeCommitFailed):
        return {
            "durable_state_advanced": True,
            "revision": error.revision,
            "content_digest": error.content_digest,
        }
    return {}


def files(inventory: Inventory, rows: Iterable[StatusRow]) -> FilesAnswer:
    """``resident`` counts artifacts behind ready rows only (contracts section 19), the total each file once."""
    resident = {row.artifact_digest for row in rows if row.state == "ready"}
    return FilesAnswer(
        cache_root=inventory.cache_root,
        total_bytes=distinct_bytes(inventory.artifacts),
        artifacts=[
            CachedArtifact(
                logical_model=record.logical_model,
                variant_id=record.variant_id,
                artifact_digest=record.digest,
                total_size_bytes=record.total_size_bytes,
                last_accessed_ms=record.last_accessed_ms,
                resident=record.digest in resident,
            )
            for record in inventory.artifacts
        ],
    )


def request_entry(record: RequestRecord) -> RequestEntry:
    return RequestEntry(
        timestamp=rfc3339(record.finished_at),
        origin=record.origin,
        method=record.method,
        path=record.path,
        status=record.status,
        latency_ms=round(record.latency_ms, 3),
        client_ip=record.client_ip,
        request_id=record.request_id,
        retry_count=record.retry_count,
        failover_engaged=record.failover_engaged,
        provider=record.provider,
        deployment=record.deployment,
        model=record.model,
        route_class=record.route_class,
        surface=record.surface,
        tokens_in=record.tokens_in,
        tokens_out=record.tokens_out,
        usage_estimated=record.usage_estimated or None,
        ttft_ms=record.ttft_ms,
        queued_ms=record.queued_ms,
        bytes_in=record.bytes_in,
        bytes_out=record.bytes_out,
        streamed=record.streamed,
        key_mode=record.key_mode or "none",
        api_key_id=record.api_key_id,
        error_class=record.error_class,
        error_code=record.error_code,
        config_revision=record.config_revision,
    )


def reload_outcome(outcome: ReloadOutcome) -> ReloadAnswer:
    return ReloadAnswer(
        config_revision=outcome.config_revision,
        loaded_at=rfc3339(outcome.loaded_at),
        fully_applied=not outcome.degraded,
        degraded=list(outcome.degraded),
    )


def drift(report: DriftReport, checked_at: float) -> DriftAnswer:
    return DriftAnswer(
        config_path=report.config_path,
        loaded_revision=report.loaded_revision,
        loaded_content_hash=report.loaded_content_hash,
        on_disk_content_hash=report.on_disk_content_hash,
        drift=report.loaded_content_hash != report.on_disk_content_hash,
        on_disk_size_bytes=report.on_disk_size_bytes,
        checked_at=rfc3339(checked_at),
    )


def health_checks(components: Iterable[ComponentHealth]) -> list[HealthCheck]:
    """Sorted by name (contracts section 3)."""
    ordered = sorted(components, key=lambda component: component.name)
    return [HealthCheck(name=check.name, status=check.status, detail=check.detail) for check in ordered]


def _deployment(row: StatusRow) -> DeploymentStatus:
    return DeploymentStatus(
        deployment=row.deployment,
        replica=row.replica,
        generation=row.generation,
        state=row.state,
        active_requests=row.active_requests,
        queued_requests=row.queued_requests,
        max_concurrency=row.max_concurrency,
        max_queue_depth=row.max_queue_depth,
        engine=row.engine,
        engine_version=row.engine_version,
        driver_availability=row.driver_availability,
        model=row.model,
        variant=row.variant,
        artifact_digest=row.artifact_digest,
        selected_devices=list(row.selected_devices),
        memory=_memory(row.memory) if row.memory else None,
        resident_bytes=row.resident_bytes,
        port=row.port,
        pid=row.pid,
        reason_code=row.reason_code,
        job_id=row.job_id,
        last_error=_foreign(row.last_error),
        keep_alive_secs=row.keep_alive_secs,
        expires_at_ms=row.expires_at_ms,
        stop_cause=row.stop_cause,
    )


def _memory(estimate: MemoryEstimate) -> Memory:
    return Memory(
        device_indexes=list(estimate.device_indexes),
        weight_bytes=estimate.weight_bytes,
        kv_bytes=estimate.kv_bytes,
        runtime_overhead_bytes=estimate.runtime_overhead_bytes,
        safety_margin_bytes=estimate.safety_margin_bytes,
        total_bytes=estimate.total_bytes,
    )


def _model(model: CatalogModel) -> CatalogEntry:
    return CatalogEntry(
        params=_bounded(model.params),
        license=_bounded(model.license),
        family=_bounded(model.family),
        context_length=model.context_length,
        modality=model.modality,
        variants=[_variant(variant) for variant in model.variants],
    )


def _variant(variant: Variant) -> CatalogVariant:
    return CatalogVariant(
        id=variant.id,
        format=variant.format,
        quant=_bounded(variant.quant),
        engines=list(variant.engines),
        accelerators=list(variant.requirements.accelerators),
        min_memory_bytes=variant.requirements.min_memory_bytes,
        download_size_bytes=variant.total_size_bytes,
        certification=_bounded(variant.certification),
        stability=variant.stability,
    )


def _blocker(row: StatusRow) -> str:
    if row.driver_availability not in _SERVABLE:
        return f"engine_{row.driver_availability}"
    return row.reason_code or row.state


def _bounded(text: str) -> str:
    return scrub(text, TEXT_LIMIT)


def _foreign(text: str | None) -> str | None:
    return None if text is None else _MASK(scrub(text, ERROR_LIMIT))
