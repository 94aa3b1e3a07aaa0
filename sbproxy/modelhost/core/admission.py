"""Who may run next on one deployment: an active cap and a bounded queue (document 1, "Admission and residency").

Decides only: tickets are plain numbers, and waiting, time-outs and permits belong to ``sbproxy.modelhost.gate``.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from sbproxy.modelhost.core.status import PRIORITIES, Priority

_RANK: dict[Priority, int] = {priority: rank for rank, priority in enumerate(PRIORITIES)}

_SLACK = 64
"""How many tickets that left may stay in the heap before it is swept, beyond as many as wait."""


@dataclass(slots=True)
class AdmissionQueue:
    """At most ``max_active`` granted at once; the rest in (priority, arrival) order, at most ``max_depth`` of them.

    The queue starts closed: tickets wait for the engine and none is granted. While it is closed the first
    ``max_active`` tickets do not count against ``max_depth``, because an open queue would have granted them at once;
    so a deployment with depth 0 can still be woken by a request. Mutable on purpose: this is the hot path.
    """

    max_active: int
    max_depth: int
    active: int = 0
    is_open: bool = False
    _waiting: dict[int, Priority] = field(default_factory=dict)
    _order: list[tuple[int, int]] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def try_grant(self) -> bool:
        """Grant without queueing: only when there is room and nobody waits."""
        if not self.is_open or self._waiting or self.active >= self.max_active:
            return False
        self.active += 1
        return True

    def join(self, ticket: int, priority: Priority) -> bool:
        """Queue a ticket; false when the queue is full. Ticket numbers must grow: they are the arrival order."""
        room = self.max_depth + (0 if self.is_open else self.max_active)
        if len(self._waiting) >= room:
            return False
        self._waiting[ticket] = priority
        heapq.heappush(self._order, (_RANK[priority], ticket))
        return True

    def leave(self, ticket: int) -> None:
        """Take a waiting ticket out; nothing happens when it was granted or refused already."""
        self._waiting.pop(ticket, None)
        if len(self._order) > 2 * len(self._waiting) + _SLACK:
            self._order = [entry for entry in self._order if entry[1] in self._waiting]
            heapq.heapify(self._order)

    def open(self) -> list[int]:
        """The engine is ready: the tickets that may run now, in order."""
        self.is_open = True
        return self._grant()

    def release(self) -> list[int]:
        """One active request ended: the tickets that may run now, in order."""
        self.active -= 1
        return self._grant() if self._waiting else []

    def close(self) -> None:
        """Grant nothing more; what is active may finish. Waiting tickets stay until ``reject_all``."""
        self.is_open = False

    def reject_all(self) -> list[int]:
        """Empty the queue: the tickets that were waiting, in order."""
        refused = [ticket for _, ticket in sorted(self._order) if ticket in self._waiting]
        self._waiting.clear()
        self._order.clear()
        return refused

    def _grant(self) -> list[int]:
        granted: list[int] = []
        while self.is_open and self._waiting and self.active < self.max_active:
            _, ticket = heapq.heappop(self._order)
            # Tickets that left stay in the heap until they surface here.
            if self._waiting.pop(ticket, None) is not None:
                self.active += 1
                granted.append(ticket)
        if not self._waiting:
            self._order.clear()
        return granted
