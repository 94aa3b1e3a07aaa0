"""Who may run next on one deployment: places on its replicas and a bounded queue ("Admission and residency").

Decides only: tickets are plain numbers, and waiting, time-outs and permits belong to ``sbproxy.modelhost.gate``.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from sbproxy.modelhost.core.status import PRIORITIES, Priority

_RANK: dict[Priority, int] = {priority: rank for rank, priority in enumerate(PRIORITIES)}

_SLACK = 64
"""How many tickets that left may stay in the heap before it is swept, beyond as many as wait."""


@dataclass(slots=True, eq=False)
class Seat:
    """The places on one running engine: ``active`` of them are taken. A new process is a new seat.

    ``doubted``: a request failed on it and it has not proved its health since, so others are preferred.
    """

    active: int = 0
    is_open: bool = True
    doubted: bool = False


Grant = tuple[int, Seat]
"""A ticket, and where it may run."""


@dataclass(slots=True)
class AdmissionQueue:
    """At most ``max_active`` granted at once on each seat; the rest in (priority, arrival) order, at most
    ``max_depth`` of them. A grant goes to the open seat with the fewest active requests.

    There is no seat at first: tickets wait for an engine and none is granted. While no seat is open, the first
    ``cold_room`` tickets (the places that all replicas will have) do not count against ``max_depth``, because open
    seats would have granted them at once; so a deployment with depth 0 can still be woken by a request.

    Between ``hold`` and ``resume`` newcomers are parked: they wait, and are granted nothing, so that who came before
    them, here or at another deployment that needs the memory, is served first. Mutable on purpose: the hot path.
    """

    max_active: int
    max_depth: int
    cold_room: int = 0
    holding: bool = False
    _seats: list[Seat] = field(default_factory=list)
    _waiting: dict[int, Priority] = field(default_factory=dict)
    _parked: dict[int, Priority] = field(default_factory=dict)
    _order: list[tuple[int, int]] = field(default_factory=list)

    @property
    def active(self) -> int:
        return sum(seat.active for seat in self._seats)

    @property
    def waiting(self) -> int:
        """Everybody who waits, parked or not."""
        return len(self._waiting) + len(self._parked)

    @property
    def due(self) -> int:
        """Those who wait and are not parked."""
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        return any(seat.is_open for seat in self._seats)

    def try_grant(self) -> Seat | None:
        """Grant without queueing: only when there is room, nobody waits and newcomers are not held."""
        if self._waiting or self.holding:
            return None
        seat = self._freest()
        if seat is not None:
            seat.active += 1
        return seat

    def join(self, ticket: int, priority: Priority) -> bool:
        """Queue a ticket; false when the queue is full. Ticket numbers must grow: they are the arrival order."""
        room = self.max_depth + (0 if self.is_open else self.cold_room)
        # A held queue grants nothing, so what an open seat would have taken at once does not count either.
        if self.holding:
            room = self.max_depth + self.cold_room
        if self.waiting >= room:
            return False
        if self.holding:
            self._parked[ticket] = priority
        else:
            self._queue(ticket, priority)
        return True

    def leave(self, ticket: int) -> None:
        """Take a waiting ticket out; nothing happens when it was granted or refused already."""
        self._parked.pop(ticket, None)
        self._waiting.pop(ticket, None)
        if len(self._order) > 2 * len(self._waiting) + _SLACK:
            self._order = [entry for entry in self._order if entry[1] in self._waiting]
            heapq.heapify(self._order)

    def open_seat(self) -> tuple[Seat, list[Grant]]:
        """An engine is ready: its seat, and the tickets that may run now, in order."""
        seat = Seat()
        self._seats.append(seat)
        return seat, self._grant()

    def release(self, seat: Seat) -> list[Grant]:
        """One active request ended: the tickets that may run now, in order. Nothing happens on a removed seat."""
        if seat not in self._seats:
            return []
        seat.active -= 1
        return self._grant() if self._waiting else []

    def close_seat(self, seat: Seat) -> None:
        """Grant nothing more on this seat; what is active there may finish."""
        seat.is_open = False

    def remove_seat(self, seat: Seat) -> None:
        """The engine is gone, and what was active on it counts no more."""
        seat.is_open = False
        if seat in self._seats:
            self._seats.remove(seat)

    def hold(self) -> None:
        """Park newcomers; who waits already stays due."""
        self.holding = True

    def resume(self) -> list[Grant]:
        """Let the parked ones queue in their arrival order: the tickets that may run now."""
        self.holding = False
        parked, self._parked = self._parked, {}
        for ticket, priority in parked.items():
            self._queue(ticket, priority)
        return self._grant()

    def reject_all(self) -> list[int]:
        """Empty the queue: the tickets that were waiting, in order, parked ones last."""
        refused = [ticket for _, ticket in sorted(self._order) if ticket in self._waiting]
        refused.extend(self._parked)
        self._waiting.clear()
        self._parked.clear()
        self._order.clear()
        return refused

    def position(self, ticket: int) -> int:
        """How many are before this ticket, plus one; 0 when it does not wait."""
        if ticket in self._parked:
            return len(self._waiting) + 1 + sum(1 for other in self._parked if other < ticket)
        priority = self._waiting.get(ticket)
        if priority is None:
            return 0
        mine = (_RANK[priority], ticket)
        return 1 + sum(1 for other, theirs in self._waiting.items() if (_RANK[theirs], other) < mine)

    def _queue(self, ticket: int, priority: Priority) -> None:
        self._waiting[ticket] = priority
        heapq.heappush(self._order, (_RANK[priority], ticket))

    def _freest(self) -> Seat | None:
        best: Seat | None = None
        least = self.max_active
        for seat in self._seats:
            if seat.is_open and seat.active < least and not seat.doubted:
                best, least = seat, seat.active
        if best is None:
            rest = [seat for seat in self._seats if seat.doubted and seat.is_open and seat.active < self.max_active]
            best = min(rest, key=lambda seat: seat.active, default=None)
        return best

    def _grant(self) -> list[Grant]:
        granted: list[Grant] = []
        while self._waiting and (seat := self._freest()) is not None:
            _, ticket = heapq.heappop(self._order)
            # Tickets that left stay in the heap until they surface here.
            if self._waiting.pop(ticket, None) is not None:
                seat.active += 1
                granted.append((ticket, seat))
        if not self._waiting:
            self._order.clear()
        return granted
