"""Brings artifacts into the store: one pull per digest however many want it, a durable job each, progress, metrics.

Bytes, verification and resumption are the store's; who wants what is the callers'.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sbproxy.artifacts.core.model import PullIntent, PullProgress, Ready, Snapshot
from sbproxy.catalog.core.model import ArtifactDigest, PullPolicy, ResolvedArtifact
from sbproxy.errors.artifacts import ArtifactError, PullCancelled
from sbproxy.modelhost.core.jobs import ENDED_EARLY, INTERRUPTED, JobId, JobProgress
from sbproxy.modelhost.job_desk import Job, JobDesk
from sbproxy.modelhost.ports import ArtifactStore, HostMetrics

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Pull:
    store: ArtifactStore
    artifact: ResolvedArtifact
    intent: PullIntent
    policy: PullPolicy
    job: Job
    cancelled: threading.Event = field(default_factory=threading.Event)
    interrupted: bool = False
    interested: int = 0
    task: asyncio.Task[Snapshot] = field(init=False)


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
        if shared is None or shared.cancelled.is_set():
            job = self.jobs.begin("pull", artifact.subject)
            shared = self._begin(_Pull(store, artifact, intent, policy, job))
            self._shared[artifact.digest] = shared
        if told is not None:
            told(shared.job.id)
        return await self._join(shared)

    def begin(
        self, store: ArtifactStore, artifact: ResolvedArtifact, intent: PullIntent, policy: PullPolicy, job: Job
    ) -> asyncio.Task[Snapshot]:
        """Pull under a job that the caller has opened, beside whoever else pulls; the store serializes them."""
        return self._begin(_Pull(store, artifact, intent, policy, job)).task

    async def close(self) -> None:
        """End all pulls, keeping what came; their jobs are interrupted."""
        for pull in self._running:
            pull.interrupted = True
            pull.cancelled.set()
        await asyncio.gather(*(pull.task for pull in self._running), return_exceptions=True)

    def _begin(self, pull: _Pull) -> _Pull:
        pull.job.on_cancel(pull.cancelled.set)
        pull.task = asyncio.get_running_loop().create_task(self._run(pull), name=f"pull {pull.artifact.subject}")
        self._running.add(pull)
        pull.task.add_done_callback(lambda task: self._ended(pull, task))
        return pull

    async def _join(self, pull: _Pull) -> Snapshot:
        pull.interested += 1
        try:
            return await asyncio.shield(pull.task)
        finally:
            pull.interested -= 1
            if pull.interested == 0 and not pull.task.done():
                pull.cancelled.set()

    async def _run(self, pull: _Pull) -> Snapshot:
        loop = asyncio.get_running_loop()
        job, artifact = pull.job, pull.artifact
        started = loop.time()
        log.info(
            "pull_started artifact=%s bytes=%d job=%s", artifact.subject, artifact.variant.total_size_bytes, job.id
        )

        def progress(step: PullProgress) -> None:
            loop.call_soon_threadsafe(_tell, job, step)

        try:
            snapshot = await self._counted(
                asyncio.to_thread(
                    pull.store.ensure,
                    artifact,
                    intent=pull.intent,
                    policy=pull.policy,
                    progress=progress,
                    cancelled=pull.cancelled,
                )
            )
        except ArtifactError as error:
            self._failed(pull, error, loop.time() - started)
            raise
        self._done(job, snapshot, artifact.subject, loop.time() - started)
        return snapshot

    def _done(self, job: Job, snapshot: Snapshot, subject: str, seconds: float) -> None:
        total = snapshot.verified_bytes
        if snapshot.fetched_bytes:
            # Found in the cache, or copied from another program's: no download, and no time of one.
            self.metrics.downloaded(snapshot.fetched_bytes, seconds, failed=False)
        log.info(
            "pull_finished artifact=%s bytes=%d fetched=%d seconds=%.1f job=%s",
            subject,
            total,
            snapshot.fetched_bytes,
            seconds,
            job.id,
        )
        if job.record.state == "downloading":
            job.progress("verifying", JobProgress(total, total))
        job.finish(JobProgress(total, total))

    def _failed(self, pull: _Pull, error: ArtifactError, seconds: float) -> None:
        job, code = pull.job, error.code
        if isinstance(error, PullCancelled):
            code = INTERRUPTED if pull.interrupted else ENDED_EARLY
            log.info("pull_ended artifact=%s seconds=%.1f job=%s: %s", pull.artifact.subject, seconds, job.id, code)
        else:
            self.metrics.downloaded(0, seconds, failed=True)
            log.error("pull_failed artifact=%s seconds=%.1f job=%s: %s", pull.artifact.subject, seconds, job.id, error)
        job.fail(str(error), code)

    async def _counted(self, ensure: Awaitable[Snapshot]) -> Snapshot:
        try:
            return await ensure
        except PullCancelled:
            raise  # what people want is no error of the artifact
        except ArtifactError as error:
            self.metrics.artifact_error(error.code)
            raise

    def _ended(self, pull: _Pull, task: asyncio.Task[Snapshot]) -> None:
        self._running.discard(pull)
        if self._shared.get(pull.artifact.digest) is pull:
            del self._shared[pull.artifact.digest]
        if not task.cancelled():
            task.exception()  # everybody may have left; the job has the error


def _tell(job: Job, step: PullProgress) -> None:
    """Progress of a worker thread, on the loop. A late word after the end of the job is dropped."""
    if step.phase in ("downloading", "verifying") and job.record.state in ("queued", "downloading", "verifying"):
        if job.record.state == "verifying" and step.phase == "downloading":
            return
        job.progress(step.phase, JobProgress(step.completed_bytes, step.total_bytes, step.file))
