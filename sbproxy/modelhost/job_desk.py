"""Opens, moves, cancels and shows jobs: ids, legal moves, and events to followers over restarts of the daemon.

What a job does is its opener's business; records and moves are ``core.jobs``, storage is a ``JobStore`` behind a
``JobWriter``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace

from sbproxy.errors.modelhost import JobNotCancellable, UnknownJob
from sbproxy.modelhost.core.jobs import (
    ENDED_EARLY,
    INTERRUPTED,
    IRREVOCABLE,
    TERMINAL,
    JobId,
    JobKind,
    JobProgress,
    JobRecord,
    JobState,
    move,
    new_job,
)
from sbproxy.modelhost.core.ulid import MonotonicUlids
from sbproxy.modelhost.job_feed import Gap, JobEvent, JobFeed
from sbproxy.modelhost.job_writer import JobWriter
from sbproxy.modelhost.ports import JobStore

PROGRESS_INTERVAL_S = 0.25
FOREIGN_LOOK_S = 1.0
"""How often the job of another process is read while somebody follows it."""

Withdraw = Callable[[], str | None]
"""Ends the work of a job soon, which then fails as ``cancelled``; or does nothing and returns why it may not."""


class Job:
    """One open job. Methods run on the event loop and return at once; the write follows on the store's thread."""

    def __init__(self, desk: JobDesk, record: JobRecord) -> None:
        self._desk = desk
        self._told_at = 0.0
        self._withdraw: Withdraw | None = None
        self.record = record
        self.cancel_asked = False

    @property
    def id(self) -> JobId:
        return self.record.id

    @property
    def ended(self) -> bool:
        """Also when the desk has closed it."""
        return self.record.state in TERMINAL

    def on_cancel(self, withdraw: Withdraw | None) -> None:
        """Offer a way to cancel this job, or take the offer back."""
        self._withdraw = withdraw

    def cancel(self) -> None:
        """Ask for the end. A second time is no error. Raises JobNotCancellable."""
        if self.cancel_asked:
            return
        kind = self.record.kind
        if self._withdraw is None:
            refusal: str | None = IRREVOCABLE.get(kind, "its work cannot be taken back any more")
        else:
            # Before the work hears of it, because its end may come within the call.
            self.cancel_asked = True
            refusal = self._withdraw()
        if refusal is not None:
            self.cancel_asked = False
            raise JobNotCancellable(self.id, kind, refusal)

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
    """All jobs of this process over one store, and the view on those of others."""

    def __init__(self, store: JobStore, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ulids = MonotonicUlids()
        self._writer = JobWriter(store)
        self._open: dict[JobId, Job] = {}
        self.feed = JobFeed(store.first_sequence)

    @property
    def unfinished(self) -> int:
        return len(self._open)

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    async def open(self, kind: JobKind, subject: str) -> Job:
        """A queued job that is on disk when this returns, or as soon as the store takes it again."""
        job, written = self._begin(kind, subject)
        try:
            await asyncio.wrap_future(written)
        except asyncio.CancelledError:
            job.fail("it was given up before it began", ENDED_EARLY)
            raise
        return job

    def begin(self, kind: JobKind, subject: str) -> Job:
        """A queued job at once; its write follows on the store's thread, before that of any later move."""
        return self._begin(kind, subject)[0]

    def _begin(self, kind: JobKind, subject: str) -> tuple[Job, Future[None]]:
        now = self.now_ms()
        job = Job(self, new_job(JobId(self._ulids.next(now, secrets.randbits(80))), kind, subject, now))
        self._open[job.id] = job
        return job, self._tell(job, job.record)

    def moved(self, job: Job, record: JobRecord) -> None:
        """Publish and store one move of an open job."""
        if record.state in TERMINAL:
            self._open.pop(job.id, None)
        self._tell(job, record)

    def _tell(self, job: Job, record: JobRecord) -> Future[None]:
        job.record = record = replace(record, sequence=self.feed.publish(record))
        return self._writer.write(record)

    async def cancel(self, job_id: JobId) -> JobRecord:
        """Ask an unfinished job of this process to end; it fails as ``cancelled`` soon after.

        Raises UnknownJob; JobNotCancellable for one that has ended, of another process, or with no way back.
        """
        job = self._open.get(job_id)
        if job is None:
            record = await self.get(job_id)
            ended = record.state in TERMINAL
            reason = f"it has ended ({record.state})" if ended else "another process runs it; end that process"
            raise JobNotCancellable(job_id, record.kind, reason)
        job.cancel()
        return job.record

    async def get(self, job_id: JobId) -> JobRecord:
        """Raises UnknownJob or JobStoreUnusable."""
        if job_id in self._open:
            return self._open[job_id].record
        record = await asyncio.wrap_future(self._writer.read(job_id))
        if record is None:
            raise UnknownJob(job_id)
        return record

    async def list(self) -> list[JobRecord]:
        """All retained jobs, oldest first. Raises JobStoreUnusable."""
        return await asyncio.wrap_future(self._writer.read_all())

    async def follow(self, job_id: JobId | None, after: int | None) -> AsyncIterator[JobEvent | Gap]:
        """Events of one job until it ends, or of all jobs; see ``JobFeed.subscribe``. Raises UnknownJob.

        A number of an earlier process is answered with a gap, and then with the stored state of every job that has
        moved since, under the number of its last event; so a reader may break off anywhere and resume.
        """
        source = self._follow_all(after) if job_id is None else self._follow_one(job_id, after)
        async for event in source:
            yield event

    async def _follow_all(self, after: int | None) -> AsyncIterator[JobEvent | Gap]:
        first = self.feed.first
        if after is not None and after < first - 1:
            yield Gap(after + 1, first - 1, resume=after)
            for event in _told_between(await self.list(), after, first):
                yield event
            after = first - 1
        async for item in self.feed.subscribe(None, after):
            yield item

    async def _follow_one(self, job_id: JobId, after: int | None) -> AsyncIterator[JobEvent | Gap]:
        if not self.feed.knows(job_id):
            record = await self.get(job_id)
            earlier = after if after is not None and after < self.feed.first else None
            if earlier is not None and record.sequence is not None and record.sequence > earlier + 1:
                yield Gap(earlier + 1, record.sequence - 1, resume=earlier)
            if record.sequence is not None and record.state in TERMINAL:
                if earlier is None or record.sequence > earlier:
                    yield JobEvent(record.sequence, record)
                return
            self._tell_foreign(record)
            after = None
        watching = None if job_id in self._open else asyncio.create_task(self._watch_foreign(job_id))
        try:
            async for item in self.feed.subscribe(job_id, after):
                yield item
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def _watch_foreign(self, job_id: JobId) -> None:
        """Tell the moves of a job that another process makes, by reading it again and again."""
        while (last := self.feed.last(job_id)) is not None and last.state not in TERMINAL:
            await asyncio.sleep(FOREIGN_LOOK_S)
            self._tell_foreign(await self.get(job_id))

    def _tell_foreign(self, record: JobRecord) -> None:
        last = self.feed.last(record.id)
        # Another follower may have told it already; numbers of the feed are not the other process's.
        if last is None or replace(last, sequence=None) != replace(record, sequence=None):
            self.feed.publish(record)

    async def close(self) -> None:
        """Fail what is still open as interrupted, and wait for the last write."""
        for job in list(self._open.values()):
            job.fail("the daemon stopped before it was done", INTERRUPTED)
        await asyncio.to_thread(self._writer.close)


def _told_between(records: list[JobRecord], after: int, first: int) -> list[JobEvent]:
    """Each record whose last event came after ``after`` and before this process, in the order of those events."""
    told = [JobEvent(each.sequence, each) for each in records if each.sequence is not None]
    return sorted((each for each in told if after < each.sequence < first), key=lambda event: event.sequence)
