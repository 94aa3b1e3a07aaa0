"""Time-outs of whole exchanges, swept by one timer: a timer for each request would cost as much as its routing.

A watched task that is late is cancelled; ``Watch.took`` tells that cancellation from a client's departure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SWEEP_S = 0.05
"""How much later than its limit an exchange may be cut."""


class Watch:
    """One exchange under a limit. ``at`` is on the clock of its :class:`Deadlines` and may be moved."""

    __slots__ = ("at", "expired", "task")

    def __init__(self, task: asyncio.Task[object], at: float) -> None:
        self.task = task
        self.at = at
        self.expired = False

    def took(self) -> bool:
        """Whether the CancelledError at hand is this watch's doing alone; asks (and settles) once."""
        return self.expired and self.task.uncancel() == 0


class Deadlines:
    """All watches of one gateway, on one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._watches: set[Watch] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, limit_s: float) -> Watch:
        """Watch the running task."""
        loop = self._loop
        if loop is None or self._timer is None:
            loop = self._loop = asyncio.get_running_loop()
            self._timer = loop.call_later(SWEEP_S, self._sweep)
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("only a task can be watched")
        watch = Watch(task, self._clock() + limit_s)
        self._watches.add(watch)
        return watch

    def end(self, watch: Watch) -> None:
        """The exchange is over."""
        self._watches.discard(watch)

    def _sweep(self) -> None:
        now = self._clock()
        for watch in list(self._watches):
            if watch.at <= now:
                self._watches.discard(watch)
                watch.expired = True
                watch.task.cancel()
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep) if self._watches else None
