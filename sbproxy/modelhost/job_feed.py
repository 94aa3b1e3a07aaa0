"""Tells followers about job events, in order, with replay and with gaps said out loud (contracts section 18).

Lives on the event loop: one process-wide sequence, from 0 with a new store and behind the last one after that; the
last 64 events of each of the last 512 jobs replay.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sbproxy.modelhost.core.jobs import TERMINAL, JobId, JobRecord

EVENTS_PER_JOB = 64
JOBS_REPLAYED = 512
FOLLOWER_BACKLOG = 256


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One state of one job."""

    sequence: int
    job: JobRecord


@dataclass(frozen=True, slots=True)
class Gap:
    """The events ``first``..``last`` (inclusive) are not to be had; read the jobs anew."""

    first: int
    last: int
    resume: int | None = None
    """The number to resume after when the reader breaks off here; None: ``last``. It is less where what is known of
    the missing events follows."""


class _Follower:
    """The unread events of one subscriber; when they are too many, the rest becomes one gap."""

    def __init__(self, job_id: JobId | None) -> None:
        self.job_id = job_id
        self.unread: deque[JobEvent] = deque()
        self.missed: Gap | None = None
        self.ended = False
        self.woken = asyncio.Event()

    def offer(self, event: JobEvent) -> None:
        if self.job_id is not None and event.job.id != self.job_id:
            return
        if self.missed is not None or len(self.unread) >= FOLLOWER_BACKLOG:
            first = event.sequence if self.missed is None else self.missed.first
            self.missed = Gap(first, event.sequence)
        else:
            self.unread.append(event)
        if self.job_id is not None and event.job.state in TERMINAL:
            self.ended = True
        self.woken.set()

    async def events(self) -> AsyncIterator[JobEvent | Gap]:
        while True:
            while self.unread:
                yield self.unread.popleft()
            if self.missed is not None:
                gap, self.missed = self.missed, None
                yield gap
            elif self.ended:
                return
            elif not self.unread:
                self.woken.clear()
                await self.woken.wait()


class JobFeed:
    """All job events of this process. Its first one has the number ``first``; lower ones are of an earlier process."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self._next = first
        self._rings: OrderedDict[JobId, deque[JobEvent]] = OrderedDict()
        self._lost = first - 1
        self._lost_of: dict[JobId, int] = {}
        self._followers: set[_Follower] = set()

    @property
    def followers(self) -> int:
        return len(self._followers)

    def knows(self, job_id: JobId) -> bool:
        """Whether events of the job can be replayed."""
        return job_id in self._rings

    def last(self, job_id: JobId) -> JobRecord | None:
        """The newest state that was told of a job, while it can be replayed."""
        ring = self._rings.get(job_id)
        return ring[-1].job if ring else None

    def publish(self, job: JobRecord) -> int:
        """Number one event and hand it to every follower; returns its sequence."""
        event = JobEvent(self._next, job)
        self._next += 1
        ring = self._rings.setdefault(job.id, deque())
        self._rings.move_to_end(job.id)
        if len(ring) == EVENTS_PER_JOB:
            self._lose(ring.popleft())
        ring.append(event)
        if len(self._rings) > JOBS_REPLAYED:
            evicted, events = self._rings.popitem(last=False)
            self._lost = max(self._lost, events[-1].sequence)
            self._lost_of.pop(evicted, None)
        for follower in self._followers:
            follower.offer(event)
        return event.sequence

    async def subscribe(self, job_id: JobId | None, after: int | None) -> AsyncIterator[JobEvent | Gap]:
        """Events of one job (ends after its terminal one) or of all jobs (never ends).

        ``after`` is the last sequence the follower has seen: what came later is replayed first, behind a Gap when some
        of it is gone. None replays everything that is kept. A sequence that nobody has given out yet is of another
        store: everything is replayed behind a gap.
        """
        follower = _Follower(job_id)
        for item in self._replay(job_id, after):
            if isinstance(item, Gap):
                yield item
            else:
                follower.unread.append(item)
        if job_id is not None and (ring := self._rings.get(job_id)):
            follower.ended = ring[-1].job.state in TERMINAL
        self._followers.add(follower)
        try:
            async for event in follower.events():
                yield event
        finally:
            self._followers.discard(follower)

    def _replay(self, job_id: JobId | None, after: int | None) -> list[JobEvent | Gap]:
        foreign = after is not None and after >= self._next
        seen = -1 if after is None or foreign else after
        lost = self._lost if job_id is None else self._lost_of.get(job_id, -1)
        rings = self._rings.values() if job_id is None else [self._rings.get(job_id, deque())]
        kept = sorted((e for ring in rings for e in ring if e.sequence > seen), key=lambda event: event.sequence)
        if foreign:
            return [Gap(self.first, max(self._next - 1, self.first)), *kept]
        if after is not None and lost > seen:
            return [Gap(seen + 1, lost), *kept]
        return list(kept)

    def _lose(self, event: JobEvent) -> None:
        self._lost = max(self._lost, event.sequence)
        self._lost_of[event.job.id] = event.sequence
