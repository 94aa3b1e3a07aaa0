"""The ring of finished requests, and those who follow it.

A follower is a position in the ring, not a queue of its own: however slow it reads, it costs one number, and what the
ring has dropped meanwhile it hears of as an explicit gap. Everything runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from sbproxy.observe.core.record import RequestRecord
from sbproxy.observe.core.request_filter import RequestFilter

MAX_LAG = 1024
"""How many records behind the newest a follower may be before the older ones become a gap."""

# One in front of number 0, which no record has: what a follower missed there is all that it can be told.
_BEFORE_ALL = -1


@dataclass(frozen=True, slots=True)
class Numbered:
    """A record under its sequence number, which never repeats within a process."""

    sequence: int
    record: RequestRecord


@dataclass(frozen=True, slots=True)
class Gap:
    """Records ``first`` to ``last`` (both included) were dropped before the follower took them."""

    first: int
    last: int


class RequestLog:
    """Keeps the newest ``max_entries`` records, numbered from 1 on."""

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self.last_sequence = 0
        self._ring: deque[RequestRecord] = deque(maxlen=max_entries)
        self._followers: set[RequestFollower] = set()

    def append(self, record: RequestRecord) -> None:
        self._ring.append(record)
        self.last_sequence += 1
        for follower in self._followers:
            follower.wake.set()

    def page(self, wanted: RequestFilter) -> list[RequestRecord]:
        """Matching records, newest first."""
        return wanted.select(reversed(self._ring))

    def follow(self, after: int | None = None) -> RequestFollower:
        """Follow from the record after number ``after``; None starts with the next record to come.

        A number ahead of the newest is an earlier process's: everything that is kept follows, behind a gap.
        """
        position = self.last_sequence if after is None else after
        if position > self.last_sequence:
            position = _BEFORE_ALL
        follower = RequestFollower(self, position)
        self._followers.add(follower)
        return follower

    def forget(self, follower: RequestFollower) -> None:
        self._followers.discard(follower)

    def since(self, position: int) -> Iterator[Numbered | Gap]:
        """What came after ``position``, oldest first, with a gap in front when some of it is gone."""
        behind = min(self.last_sequence - position, len(self._ring), MAX_LAG)
        first = self.last_sequence - behind + 1
        if first > position + 1:
            yield Gap(position + 1, first - 1)
        tail = list(islice(reversed(self._ring), behind))
        for offset, record in enumerate(reversed(tail)):
            yield Numbered(first + offset, record)


class RequestFollower:
    """An endless asynchronous iterator over new records and gaps. Close it when done."""

    def __init__(self, log: RequestLog, position: int) -> None:
        self.wake = asyncio.Event()
        self._log = log
        self._position = position
        self._batch: Iterator[Numbered | Gap] = iter(())

    def __aiter__(self) -> RequestFollower:
        return self

    async def __anext__(self) -> Numbered | Gap:
        while True:
            item = next(self._batch, None)
            if item is not None:
                self._position = item.last if isinstance(item, Gap) else item.sequence
                return item
            self.wake.clear()
            if self._log.last_sequence == self._position:
                await self.wake.wait()
            self._batch = iter(list(self._log.since(self._position)))

    def close(self) -> None:
        self._log.forget(self)
