"""Lets requests in to one running engine: permits, waiting callers and their time-outs over the pure queue.

One gate lives as long as one engine process; a new start gets a new gate, so that a permit of a dead engine can
never be counted against the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sbproxy.engines.core.model import Endpoint
from sbproxy.errors.modelhost import AdmissionRejected
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.admission import AdmissionQueue
from sbproxy.modelhost.core.status import Priority


class HostPermit:
    """Implements the gateway's ``Permit``."""

    __slots__ = ("_gate", "deployment", "endpoint", "generation")

    def __init__(self, gate: Gate, endpoint: Endpoint) -> None:
        self._gate: Gate | None = gate
        self.endpoint = endpoint
        self.deployment = gate.deployment
        self.generation = gate.generation

    def release(self) -> None:
        gate = self._gate
        if gate is not None:
            self._gate = None
            gate.leave()

    def engine_failed(self, detail: str) -> None:
        if self._gate is not None:
            self._gate.suspected(detail)


@dataclass(slots=True)
class _Waiter:
    future: asyncio.Future[HostPermit]
    timer: asyncio.TimerHandle


class Gate:
    """Admission to one engine process. ``on_idle`` is called when the last permit comes back and nobody waits.

    A caller waits at most ``queue_timeout_s`` for a permit of a ready engine. While the engine still starts, the
    bound is ``cold_timeout_s``; the queue's own time begins when the engine is ready.
    """

    def __init__(
        self,
        deployment: str,
        generation: int,
        *,
        max_active: int,
        max_depth: int,
        queue_timeout_s: float,
        cold_timeout_s: float,
        on_idle: Callable[[], None],
        suspect: Callable[[str], None],
    ) -> None:
        self.deployment = deployment
        self.generation = generation
        self._suspect = suspect
        self.idle_since: float | None = None
        self._queue = AdmissionQueue(max_active, max_depth)
        self._queue_timeout_s = queue_timeout_s
        self._cold_timeout_s = max(cold_timeout_s, queue_timeout_s)
        self._on_idle = on_idle
        self._endpoint: Endpoint | None = None
        self._waiters: dict[int, _Waiter] = {}
        self._last_ticket = 0
        self._revoked = False
        self._time = asyncio.get_running_loop().time

    @property
    def active(self) -> int:
        return 0 if self._revoked else self._queue.active

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    def try_enter(self) -> HostPermit | None:
        """A permit at once, or None. The hot path: no clock, no timer, nothing allocated beside the permit."""
        endpoint = self._endpoint
        if endpoint is None or not self._queue.try_grant():
            return None
        return HostPermit(self, endpoint)

    async def enter(self, priority: Priority) -> HostPermit:
        """Wait for a permit. Raises AdmissionRejected (queue_full, queue_timeout) or what ``reject`` was given."""
        permit = self.try_enter()
        if permit is not None:
            return permit
        loop = asyncio.get_running_loop()
        self._last_ticket += 1
        ticket = self._last_ticket
        if not self._queue.join(ticket, priority):
            raise self._rejection("queue_full")
        wait_s = self._queue_timeout_s if self._queue.is_open else self._cold_timeout_s
        timer = loop.call_later(wait_s, self._expire, ticket)
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

    def open(self, endpoint: Endpoint) -> None:
        """The engine is ready: grant what may run, and start the queue clock of the rest."""
        self._endpoint = endpoint
        self._settle(self._queue.open())
        loop = asyncio.get_running_loop()
        for ticket, waiter in self._waiters.items():
            waiter.timer.cancel()
            waiter.timer = loop.call_later(self._queue_timeout_s, self._expire, ticket)
        if self._queue.active == 0:
            self._rest()

    def leave(self) -> None:
        """One permit came back."""
        if self._revoked:
            return
        queue = self._queue
        granted = queue.release()
        if granted:
            self._settle(granted)
        elif not queue.active:
            self._rest()

    def suspected(self, detail: str) -> None:
        """A request failed on the engine; that of a revoked gate is gone, and the next one is not to blame."""
        if not self._revoked:
            self._suspect(detail)

    def close(self) -> None:
        """Admit nobody more; issued permits stay good."""
        self._queue.close()
        self._endpoint = None

    def revoke(self) -> None:
        """The engine is gone: issued permits count no more and their release does nothing."""
        self.close()
        self._revoked = True

    def reject(self, refusal: Callable[[], SbproxyError]) -> int:
        """Refuse everybody who waits; returns how many."""
        refused = self._queue.reject_all()
        for ticket in refused:
            future = self._waiters[ticket].future
            if not future.done():
                future.set_exception(refusal())
        return len(refused)

    def _rest(self) -> None:
        self.idle_since = self._time()
        self._on_idle()

    def _settle(self, granted: list[int]) -> None:
        endpoint = self._endpoint
        for ticket in granted:
            future = self._waiters[ticket].future
            if endpoint is None or future.done():
                # The caller was cancelled and has not run yet; its place goes to the next one.
                self.leave()
            else:
                future.set_result(HostPermit(self, endpoint))

    def _expire(self, ticket: int) -> None:
        waiter = self._waiters[ticket]
        self._queue.leave(ticket)
        if not waiter.future.done():
            waiter.future.set_exception(self._rejection("queue_timeout"))

    def _forget(self, ticket: int) -> None:
        self._queue.leave(ticket)
        self._waiters.pop(ticket).timer.cancel()

    def _rejection(self, reason: Literal["queue_full", "queue_timeout"]) -> AdmissionRejected:
        if reason == "queue_full":
            detail = f"{self._queue.active} active and {self._queue.waiting} waiting are the limits"
        else:
            waited = self._queue_timeout_s if self._queue.is_open else self._cold_timeout_s
            detail = f"no place became free within {waited:g} s"
        return AdmissionRejected(self.deployment, reason, detail, retry_after_ms=int(self._queue_timeout_s * 1000))
