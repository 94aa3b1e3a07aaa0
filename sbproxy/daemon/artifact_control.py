"""The artifact cache as an operator handles it: pull, remove and collect, with what this daemon's host protects.

Bytes and locks are the store's; what another process leases or pulls, the store finds out itself.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from sbproxy.admin.ports import PullBegun, RemovedArtifact
from sbproxy.artifacts.core.model import GcReport, Removal
from sbproxy.artifacts.core.sweep import JUST_PULLED, budget_bytes, protections
from sbproxy.catalog.core.model import ArtifactDigest, ResolvedArtifact
from sbproxy.catalog.core.resolve import resolve
from sbproxy.daemon.runtime import Runtime
from sbproxy.errors import SbproxyError
from sbproxy.errors.artifacts import ArtifactAbsent, NoCacheBudget, RemovalBlocked, UnsafeArtifactPath
from sbproxy.modelhost.core.jobs import JobId, move
from sbproxy.modelhost.job_desk import Job

_log = logging.getLogger(__name__)


class ArtifactControl:
    """Implements ``sbproxy.admin.ports.ArtifactOperations``. Close it after the host, whose pulls it waits for."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._following: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait for collections that have begun; the jobs they follow have ended with the host."""
        await asyncio.gather(*self._following)

    async def pull(self, model: str, variant: str | None, engine: str) -> PullBegun:
        """Raises UnknownModel, UnknownVariant, IncompleteCatalogV2, NoCompatibleVariant, UnsafeArtifactPath."""
        artifact = await asyncio.to_thread(self._resolve, model, variant, engine)
        job_id = await self._runtime.host.pull(artifact)
        if self._budget is not None:
            following = asyncio.create_task(
                self._collect_after(job_id, artifact.digest), name=f"collect after {job_id}"
            )
            self._following.add(following)
            following.add_done_callback(self._following.discard)
        return PullBegun(artifact.model.id, artifact.variant.id, artifact.engine, artifact.digest, job_id)

    async def remove(self, digest: str) -> RemovedArtifact:
        """Raises ArtifactAbsent, RemovalBlocked, StoreUnusable; a refusal that comes after the job says so in it."""
        store = self._runtime.foundation.store
        records = {record.digest: record for record in await asyncio.to_thread(store.inventory)}
        record = records.get(ArtifactDigest(digest))
        if record is None:
            raise ArtifactAbsent(digest)
        reason = self._protected().get(digest)
        if reason is not None:
            raise RemovalBlocked(digest, reason)
        job = await self._runtime.host.jobs.open("delete", f"{record.logical_model}:{record.variant_id}")
        job.run("deleting")
        try:
            done = await asyncio.to_thread(store.remove, digest)
        except SbproxyError as error:
            if not job.ended:
                job.fail(str(error), error.code)
            raise
        self._deleted(job)
        _log.info("artifact_removed digest=%s bytes=%d job=%s", digest, done.reclaimed_bytes, job.id)
        return _removed(digest, done, job)

    async def collect(self) -> GcReport:
        """Bring the cache down to its budget. Raises NoCacheBudget or StoreUnusable."""
        return await self._collect({})

    async def _collect(self, also: dict[str, str]) -> GcReport:
        foundation, budget = self._runtime.foundation, self._budget
        if budget is None:
            raise NoCacheBudget(str(foundation.cache_root))
        report = await asyncio.to_thread(foundation.store.collect, budget, {**also, **self._protected()})
        _log.info(
            "cache_collected deleted=%d reclaimed_bytes=%d after_bytes=%d unsatisfied_bytes=%d",
            len(report.deleted_artifacts),
            report.reclaimed_bytes,
            report.after_bytes,
            report.budget_unsatisfied_bytes,
        )
        return report

    async def _collect_after(self, job_id: JobId, digest: str) -> None:
        """An explicit pull is followed by a collection (document 1), which spares what was asked for just now."""
        jobs = self._runtime.host.jobs
        try:
            async for _event in jobs.follow(job_id, None):
                pass
            if (await jobs.get(job_id)).state == "ready":
                await self._collect({digest: JUST_PULLED})
        except SbproxyError as error:
            _log.warning("cache_not_collected job=%s: %s", job_id, error)

    @property
    def _budget(self) -> int | None:
        gib = self._runtime.host.config.cache.budget_gib
        return None if gib is None else budget_bytes(gib)

    def _protected(self) -> dict[str, str]:
        """Everything that a row of the status names, drains and candidates included, with the strongest reason."""
        host = self._runtime.host
        rows = host.status()
        deployments = host.config.deployments
        pinned = {name for name, config in deployments.items() if config.pinned}
        return protections(
            {
                "resident": host.resident_digests(),
                "pinned": {row.artifact_digest for row in rows if row.artifact_digest and row.deployment in pinned},
                "configured": host.configured_digests() | {row.artifact_digest for row in rows if row.artifact_digest},
            }
        )

    def _resolve(self, model: str, variant: str | None, engine: str) -> ResolvedArtifact:
        """Blocking. For this kind of machine, whatever memory is free now: a pull starts nothing."""
        foundation = self._runtime.foundation
        facts = replace(foundation.worker_facts(), memory_bytes=None)
        artifact = resolve(foundation.catalog, model, variant, facts, engine)
        if artifact.variant.unverified:
            raise UnsafeArtifactPath(model, "a raw reference is used as it is and never enters the cache; pull a model")
        return artifact

    def _deleted(self, job: Job) -> None:
        desk = self._runtime.host.jobs
        # A desk that was closed meanwhile has ended the job as interrupted.
        if not job.ended:
            desk.moved(job, move(job.record, "deleted", desk.now_ms()))


def _removed(digest: str, done: Removal, job: Job) -> RemovedArtifact:
    return RemovedArtifact(digest, done.removed, done.reclaimed_bytes, job.id)
