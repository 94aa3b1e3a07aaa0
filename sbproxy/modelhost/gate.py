"""Lets requests in to the replicas of one deployment: permits, waiting callers and their time-outs over the queue.

One gate lives as long as its generation; each engine process is a place of its own in it, so that a permit of a dead
engine can never be counted against the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sbproxy.engines.core.model import Endpoint
from sbproxy.errors.modelhost import AdmissionRejected
from sbproxy.modelhost.core.admission import AdmissionQueue, Grant, Seat
from sbproxy.modelhost.core.status import Priority


@dataclass(slots=True, eq=False)
class Place:
    """One running engine in the gate. ``suspect`` is told when a request failed on it; ``idle`` when its last active
    request ended."""

    seat: Seat
    endpoint: Endpoint
    suspect: Callable[[str], None]
    idle: Callable[[], None]
    gone: bool = False

    @property
    def active(self) -> int:
        return 0 if self.gone else self.seat.active

    def trust(self) -> None:
        """It has answered its health check since a request failed on it."""
        self.seat.doubted = False


class HostPermit:
    """Implements the gateway's ``Permit``."""

    __slots__ = ("_gate", "_place", "deployment", "endpoint", "generation")

    def __init__(self, gate: Gate, place: Place) -> None:
        self._gate: Gate | None = gate
        self._place = place
        self.endpoint = place.endpoint
        self.deployment = gate.deployment
        self.generation = gate.generation

    def release(self) -> None:
        gate = self._gate
        if gate is not None:
            self._gate = None
            gate.leave(self._place)

    def engine_failed(self, detail: str) -> None:
        # The engine of a place that is gone is gone too, and the next one is not to blame.
        if self._gate is not None and not self._place.gone:
            self._place.seat.doubted = True
            self._place.suspect(detail)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long callers wait, in seconds: ``queue_s`` for a place on a ready engine or for room on the machine,
    ``cold_s`` while no engine is open and one starts (not less than ``queue_s``)."""

    queue_s: float
    cold_s: float


@dataclass(slots=True)
class _Waiter:
    future: asyncio.Future[HostPermit]
    timer: asyncio.TimerHandle


class Gate:
    """Admission to one generation.

    ``on_idle`` is called when the last permit comes back and nobody is due; ``on_forsaken`` when the last waiting
    caller has left without a permit.
    """

    def __init__(
        self,
        deployment: str,
        generation: int,
        queue: AdmissionQueue,
        patience: Patience,
        *,
        on_idle: Callable[[], None],
        on_forsaken: Callable[[], None],
    ) -> None:
        self.deployment = deployment
        self.generation = generation
        self.idle_since: float | None = None
        self._queue = queue
        self._patience = patience
        self._bound_s = patience.cold_s
        self._cause: Callable[[], str] | None = None
        self._on_idle = on_idle
        self._on_forsaken = on_forsaken
        self._places: dict[Seat, Place] = {}
        self._waiters: dict[int, _Waiter] = {}
        self._last_ticket = 0
        self._time = asyncio.get_running_loop().time

    @property
    def active(self) -> int:
        return self._queue.active

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    @property
    def busy(self) -> bool:
        """Somebody is active, or waits and is not parked."""
        return self._queue.active > 0 or self._queue.due > 0

    @property
    def is_open(self) -> bool:
        return self._queue.is_open

    def try_enter(self) -> HostPermit | None:
        """A permit at once, or None. The hot path: no clock, no timer, nothing allocated beside the permit."""
        seat = self._queue.try_grant()
        return None if seat is None else HostPermit(self, self._places[seat])

    async def enter(self, priority: Priority) -> HostPermit:
        """Wait for a permit. Raises AdmissionRejected (queue_full, queue_timeout) or what ``reject`` was given."""
        permit = self.try_enter()
        if permit is not None:
            return permit
        loop = asyncio.get_running_loop()
        self._last_ticket += 1
        ticket = self._last_ticket
        if not self._queue.join(ticket, priority):
            raise self._full()
        timer = loop.call_later(self._bound_s, self._expire, ticket)
        waiter = _Waiter(loop.create_future(), timer)
        self._waiters[ticket] = waiter
        try:
            return await waiter.future
        except asyncio.CancelledError:
            # Granted in the same turn in which the caller left: the permit must not get lost.
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                waiter.future.result().release()
            raise
        finally:
            self._forget(ticket)

    def open(self, endpoint: Endpoint, suspect: Callable[[str], None], idle: Callable[[], None]) -> Place:
        """An engine is ready: grant what may run, and start the queue clock of the rest.

        The first one is as good as just used; one more leaves the others' time of the last use alone.
        """
        seat, granted = self._queue.open_seat()
        place = self._places[seat] = Place(seat, endpoint, suspect, idle)
        self._settle(granted)
        self.bound(self._patience.queue_s)
        if len(self._places) == 1:
            self.idle_since = self._time()
        return place

    def bound(self, seconds: float, cause: Callable[[], str] | None = None) -> None:
        """From now on callers wait ``seconds``, those who wait already included; ``cause`` tells why at the end."""
        self._bound_s, self._cause = seconds, cause
        loop = asyncio.get_running_loop()
        for ticket, waiter in self._waiters.items():
            waiter.timer.cancel()
            waiter.timer = loop.call_later(seconds, self._expire, ticket)

    def leave(self, place: Place) -> None:
        """One permit came back."""
        if place.gone:
            return
        self._settle(self._queue.release(place.seat))
        if place.seat.active == 0:
            place.idle()
        if not self.busy:
            self._rest()

    def close(self, place: Place) -> None:
        """Admit nobody more there; issued permits stay good."""
        was_open = self.is_open
        self._queue.close_seat(place.seat)
        self._closed(was_open)

    def remove(self, place: Place) -> None:
        """The engine is gone: its permits count no more and their release does nothing."""
        was_open = self.is_open
        place.gone = True
        self._queue.remove_seat(place.seat)
        self._places.pop(place.seat, None)
        self._closed(was_open)

    def hold(self) -> None:
        """Serve who is due, and park newcomers."""
        self._queue.hold()

    def resume(self) -> None:
        """Serve the parked ones too."""
        if self._queue.holding:
            self._settle(self._queue.resume())

    def reject(self, refusal: Callable[[], Exception]) -> int:
        """Refuse everybody who waits; returns how many."""
        refused = self._queue.reject_all()
        for ticket in refused:
            future = self._waiters[ticket].future
            if not future.done():
                future.set_exception(refusal())
        return len(refused)

    def _closed(self, was_open: bool) -> None:
        """Who waits or comes while no engine is open waits for a start."""
        if was_open and not self.is_open:
            self.bound(self._patience.cold_s)

    def _rest(self) -> None:
        self.idle_since = self._time()
        self._on_idle()

    def _settle(self, granted: list[Grant]) -> None:
        for ticket, seat in granted:
            future = self._waiters[ticket].future
            place = self._places[seat]
            if future.done():
                # The caller was cancelled and has not run yet; its place goes to the next one.
                self.leave(place)
            else:
                future.set_result(HostPermit(self, place))

    def _expire(self, ticket: int) -> None:
        future = self._waiters[ticket].future
        if not future.done():
            # Before it leaves, so that the text can tell its position.
            future.set_exception(self._late(ticket))
        self._queue.leave(ticket)

    def _forget(self, ticket: int) -> None:
        self._queue.leave(ticket)
        self._waiters.pop(ticket).timer.cancel()
        if not self._waiters:
            self._on_forsaken()

    def _full(self) -> AdmissionRejected:
        return self._rejection("queue_full", "", f"{self._queue.active} active and {self._queue.waiting} waiting")

    def _late(self, ticket: int) -> AdmissionRejected:
        waited = f"no place became free within {self._bound_s:g} s"
        position = self._queue.position(ticket)
        where = f"{position} of {self._queue.waiting} in the queue" if position else ""
        return self._rejection("queue_timeout", waited, where)

    def _rejection(self, reason: Literal["queue_full", "queue_timeout"], detail: str, where: str) -> AdmissionRejected:
        said = [detail, where, self._cause() if self._cause is not None else ""]
        retry_after_ms = int(self._patience.queue_s * 1000)
        return AdmissionRejected(self.deployment, reason, "; ".join(filter(None, said)), retry_after_ms, where)
