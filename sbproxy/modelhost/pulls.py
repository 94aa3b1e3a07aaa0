"""Brings artifacts into the store: one pull per digest however many want it, a durable job each, progress, metrics.

Bytes, verification and resumption are the store's; who wants what is the callers'.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sbproxy.artifacts.core.model import PullIntent, PullProgress, Ready, Snapshot
from sbproxy.catalog.core.model import ArtifactDigest, PullPolicy, ResolvedArtifact
from sbproxy.errors.artifacts import ArtifactError
from sbproxy.modelhost.core.jobs import JobId, JobProgress
from sbproxy.modelhost.job_desk import Job, JobDesk
from sbproxy.modelhost.ports import ArtifactStore, HostMetrics

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Pull:
    task: asyncio.Task[Snapshot]
    cancelled: threading.Event
    interested: int = 0
    job: JobId | None = None
    told: list[Callable[[JobId], None]] = field(default_factory=list)

    def begun(self, job: asyncio.Future[JobId]) -> None:
        self.job = job.result()
        for told in self.told:
            told(self.job)


@dataclass(slots=True)
class PullDesk:
    """All pulls of the model host. The store is the call's, because a new foundation brings a new one."""

    jobs: JobDesk
    metrics: HostMetrics
    _shared: dict[ArtifactDigest, _Pull] = field(default_factory=dict)
    _running: set[_Pull] = field(default_factory=set)

    async def snapshot(
        self,
        store: ArtifactStore,
        artifact: ResolvedArtifact,
        intent: PullIntent,
        policy: PullPolicy,
        told: Callable[[JobId], None] | None = None,
    ) -> Snapshot:
        """The verified snapshot. A cache hit makes no job; ``told`` hears the job of a pull. Raises a leaf of
        ArtifactError.

        A caller that is cancelled leaves the pull to the others; the last one to leave ends it, resumable.
        """
        if isinstance(await asyncio.to_thread(store.state, artifact), Ready):
            return await self._counted(asyncio.to_thread(store.ensure, artifact, intent=intent, policy=policy))
        shared = self._shared.get(artifact.digest)
        if shared is None:
            shared = self._begin(store, artifact, intent, policy, None)
            self._shared[artifact.digest] = shared
        if told is not None and shared.job is None:
            shared.told.append(told)
        elif told is not None and shared.job is not None:
            told(shared.job)
        return await self._join(shared)

    def begin(
        self, store: ArtifactStore, artifact: ResolvedArtifact, intent: PullIntent, policy: PullPolicy, job: Job
    ) -> asyncio.Task[Snapshot]:
        """Pull under a job that the caller has opened, beside whoever else pulls; the store serializes them."""
        return self._begin(store, artifact, intent, policy, job).task

    async def close(self) -> None:
        """End all pulls, keeping what came."""
        for pull in self._running:
            pull.cancelled.set()
        await asyncio.gather(*(pull.task for pull in self._running), return_exceptions=True)

    def _begin(
        self, store: ArtifactStore, artifact: ResolvedArtifact, intent: PullIntent, policy: PullPolicy, job: Job | None
    ) -> _Pull:
        cancelled = threading.Event()
        jobs: asyncio.Future[JobId] = asyncio.get_running_loop().create_future()
        work = self._run(store, artifact, intent, policy, job, cancelled, jobs)
        task = asyncio.get_running_loop().create_task(work, name=f"pull {artifact.subject}")
        pull = _Pull(task, cancelled)
        jobs.add_done_callback(pull.begun)
        self._running.add(pull)
        task.add_done_callback(lambda ended: self._ended(artifact.digest, pull, ended))
        return pull

    async def _join(self, pull: _Pull) -> Snapshot:
        pull.interested += 1
        try:
            return await asyncio.shield(pull.task)
        finally:
            pull.interested -= 1
            if pull.interested == 0 and not pull.task.done():
                pull.cancelled.set()

    async def _run(
        self,
        store: ArtifactStore,
        artifact: ResolvedArtifact,
        intent: PullIntent,
        policy: PullPolicy,
        opened: Job | None,
        cancelled: threading.Event,
        begun: asyncio.Future[JobId],
    ) -> Snapshot:
        loop = asyncio.get_running_loop()
        job = opened or await self.jobs.open("pull", artifact.subject)
        begun.set_result(job.id)
        started = time.perf_counter()
        log.info(
            "pull_started artifact=%s bytes=%d job=%s", artifact.subject, artifact.variant.total_size_bytes, job.id
        )

        def progress(step: PullProgress) -> None:
            loop.call_soon_threadsafe(_tell, job, step)

        try:
            snapshot = await self._counted(
                asyncio.to_thread(
                    store.ensure, artifact, intent=intent, policy=policy, progress=progress, cancelled=cancelled
                )
            )
        except ArtifactError as error:
            seconds = time.perf_counter() - started
            self.metrics.downloaded(0, seconds, failed=True)
            log.error("pull_failed artifact=%s seconds=%.1f job=%s: %s", artifact.subject, seconds, job.id, error)
            job.fail(str(error), error.code)
            raise
        seconds, total = time.perf_counter() - started, snapshot.verified_bytes
        self.metrics.downloaded(snapshot.fetched_bytes, seconds, failed=False)
        log.info(
            "pull_finished artifact=%s bytes=%d fetched=%d seconds=%.1f job=%s",
            artifact.subject,
            total,
            snapshot.fetched_bytes,
            seconds,
            job.id,
        )
        if job.record.state == "downloading":
            job.progress("verifying", JobProgress(total, total))
        job.finish(JobProgress(total, total))
        return snapshot

    async def _counted(self, ensure: Awaitable[Snapshot]) -> Snapshot:
        try:
            return await ensure
        except ArtifactError as error:
            self.metrics.artifact_error(error.code)
            raise

    def _ended(self, digest: ArtifactDigest, pull: _Pull, task: asyncio.Task[Snapshot]) -> None:
        self._running.discard(pull)
        if self._shared.get(digest) is pull:
            del self._shared[digest]
        if not task.cancelled():
            task.exception()  # everybody may have left; the job has the error


def _tell(job: Job, step: PullProgress) -> None:
    """Progress of a worker thread, on the loop. A late word after the end of the job is dropped."""
    if step.phase in ("downloading", "verifying") and job.record.state in ("queued", "downloading", "verifying"):
        if job.record.state == "verifying" and step.phase == "downloading":
            return
        job.progress(step.phase, JobProgress(step.completed_bytes, step.total_bytes, step.file))
