"""Opens, moves and shows jobs: ids, legal moves, durable writes in order on one thread, events to followers.

What a job does is its opener's business; records and moves are ``core.jobs``, storage is a ``JobStore``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor

from sbproxy.errors.modelhost import UnknownJob
from sbproxy.modelhost.core.jobs import TERMINAL, JobId, JobKind, JobProgress, JobRecord, JobState, move, new_job
from sbproxy.modelhost.core.ulid import MonotonicUlids
from sbproxy.modelhost.job_feed import Gap, JobEvent, JobFeed
from sbproxy.modelhost.ports import JobStore

PROGRESS_INTERVAL_S = 0.25


class Job:
    """One open job. Methods run on the event loop and return at once; the write follows on the store's thread."""

    def __init__(self, desk: JobDesk, record: JobRecord) -> None:
        self._desk = desk
        self._told_at = 0.0
        self.record = record

    @property
    def id(self) -> JobId:
        return self.record.id

    def run(self, state: JobState = "running") -> None:
        self._desk.moved(self, move(self.record, state, self._desk.now_ms()))

    def progress(self, state: JobState, progress: JobProgress) -> None:
        """At most four a second reach the feed and the store; a change of phase always does."""
        now = asyncio.get_running_loop().time()
        if state != self.record.state or now - self._told_at >= PROGRESS_INTERVAL_S:
            self._told_at = now
            self._desk.moved(self, move(self.record, state, self._desk.now_ms(), progress=progress))

    def finish(self, progress: JobProgress | None = None, *, note: str | None = None) -> None:
        self._desk.moved(self, move(self.record, "ready", self._desk.now_ms(), progress=progress, note=note))

    def fail(self, error: str, error_code: str) -> None:
        failed = move(self.record, "failed", self._desk.now_ms(), error=error, error_code=error_code)
        self._desk.moved(self, failed)


class JobDesk:
    """All jobs of this process over one store."""

    def __init__(self, store: JobStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._ulids = MonotonicUlids()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="jobs")
        self._open: dict[JobId, Job] = {}
        self.feed = JobFeed()

    @property
    def unfinished(self) -> int:
        return len(self._open)

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    async def open(self, kind: JobKind, subject: str) -> Job:
        """A queued job that is on disk when this returns."""
        job, written = self._begin(kind, subject)
        try:
            await asyncio.wrap_future(written)
        except asyncio.CancelledError:
            job.fail("it was given up before it began", "cancelled")
            raise
        return job

    def begin(self, kind: JobKind, subject: str) -> Job:
        """A queued job at once; its write follows on the store's thread, before that of any later move."""
        return self._begin(kind, subject)[0]

    def _begin(self, kind: JobKind, subject: str) -> tuple[Job, Future[None]]:
        now = self.now_ms()
        job = Job(self, new_job(JobId(self._ulids.next(now, secrets.randbits(80))), kind, subject, now))
        self._open[job.id] = job
        self.feed.publish(job.record)
        return job, self._writer.submit(self._store.save, job.record)

    def moved(self, job: Job, record: JobRecord) -> None:
        """Publish and store one move of an open job."""
        job.record = record
        if record.state in TERMINAL:
            self._open.pop(job.id, None)
        self.feed.publish(record)
        self._writer.submit(self._store.save, record)

    async def get(self, job_id: JobId) -> JobRecord:
        """Raises UnknownJob."""
        if job_id in self._open:
            return self._open[job_id].record
        record = await asyncio.get_running_loop().run_in_executor(self._writer, self._store.get, job_id)
        if record is None:
            raise UnknownJob(job_id)
        return record

    async def list(self) -> list[JobRecord]:
        """All retained jobs, oldest first."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._store.jobs)

    async def follow(self, job_id: JobId | None, after: int | None) -> AsyncIterator[JobEvent | Gap]:
        """Events of one job until it ends, or of all jobs; see ``JobFeed.subscribe``. Raises UnknownJob.

        A job that ended before the feed's memory begins is published anew from the store, so that its stream has
        the terminal event and closes.
        """
        if job_id is not None and not self.feed.knows(job_id):
            record = await self.get(job_id)
            if not self.feed.knows(job_id):
                self.feed.publish(record)
            after = None
        async for event in self.feed.subscribe(job_id, after):
            yield event

    async def close(self) -> None:
        """Fail what is still open as interrupted, and wait for the last write."""
        for job in list(self._open.values()):
            job.fail("the daemon stopped before it was done", "interrupted")
        await asyncio.to_thread(self._writer.shutdown)
