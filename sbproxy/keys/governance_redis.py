"""The strict tier of governance: one set of books in Redis for every process.

Runs the scripts of ``governance_scripts``, renews leases, and books later what Redis did not take at once; what holds
while Redis is away is ``governance_outage``'s to decide.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, Self

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError

from sbproxy import __version__
from sbproxy.errors.governance import GovernanceUnavailable
from sbproxy.keys.core.governance import (
    MOST,
    Answer,
    Ask,
    BackendHealth,
    Limits,
    Posture,
    Reservation,
    UsageSnapshot,
)
from sbproxy.keys.core.governance_reply import SpanNow, refusal, snapshot
from sbproxy.keys.governance_outage import Outage
from sbproxy.keys.governance_scripts import END, FORGET, KEY_PARTS, RENEW, TAKE, USAGE

LOG = logging.getLogger("sbproxy.keys")

CONNECTIONS = 32
BACKOFF_S = 0.5
"""After a failure Redis is left alone for so long, that a dead one costs each request no time-out of its own."""

QUIET = "it did not answer a moment ago"

MOST_DUE = 100_000
"""Bookings that wait for Redis; more are dropped, and said so. A dropped one's lease runs out at its ceiling."""

RENEWED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class RedisTier:
    """``key_management.governance`` as far as the Redis tier goes (contracts section 8)."""

    lease_ttl_s: float = 120
    terminal_retention_s: float = 300
    posture: Posture = "closed"
    timeout_s: float = 1.0
    prefix: str = "sbproxy:governance"


@dataclass(slots=True)
class _Booking:
    reservation: Reservation
    how: Literal["settle", "release"]
    tokens: int
    micro_usd: int
    estimated: bool
    held_at: float


class RedisGovernor:
    """Implements ``Governor`` with waiting: ``try_reserve`` always says None.

    A lease is renewed by this object while its reservation is open; when its process dies, the scripts book it at its
    ceiling, and a settlement that still comes within the retention puts the real figure in its place. Nothing that was
    let in is ever booked at less than it used, unless Redis itself forgets: give it a persistent, ``noeviction`` one.
    """

    def __init__(
        self,
        client: Redis,
        tier: RedisTier,
        *,
        clock: Callable[[], float] | None = None,
        failed_open: Callable[[str], None] = lambda key_id: None,
    ) -> None:
        """``clock`` None: windows and leases go by the Redis server's clock, one for all processes.

        ``failed_open`` is told each key that was let in unchecked. The client decodes responses and does not retry.
        """
        self._client = client
        self._tier = tier
        self._clock = clock
        self._outage = Outage(tier.posture, failed_open)
        scripts = map(client.register_script, (TAKE, END, RENEW, USAGE, FORGET))
        self._take, self._end, self._renew, self._usage, self._forget = scripts
        self._process = secrets.token_hex(8)
        self._numbers = count()
        self._open: dict[str, tuple[Reservation, float]] = {}
        self._due: dict[str, _Booking] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._quiet_until = 0.0

    @classmethod
    def connect(
        cls,
        url: str,
        tier: RedisTier,
        *,
        clock: Callable[[], float] | None = None,
        failed_open: Callable[[str], None] = lambda key_id: None,
    ) -> Self:
        """For ``redis://``, ``rediss://`` and ``unix://`` URLs; connects when first asked. ValueError for another."""
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=tier.timeout_s,
            socket_timeout=tier.timeout_s,
            socket_connect_timeout=tier.timeout_s,
            decode_responses=True,
            # Left to itself, the client reads its own version from the disk for each connection.
            driver_info=DriverInfo("sbproxy", __version__),
            # A script that is sent twice would hold twice.
            retry=Retry(NoBackoff(), 0),
        )
        return cls(Redis.from_pool(pool), tier, clock=clock, failed_open=failed_open)

    def start(self) -> None:
        """Begin to renew leases and to book what is due, on the running loop."""
        self._keepers = [
            asyncio.create_task(self._every(self._tier.lease_ttl_s / 8, self._renew_all)),
            asyncio.create_task(self._every(BACKOFF_S, self._book_due)),
        ]

    async def close(self) -> None:
        """Book what can be booked now, and disconnect. Reservations still open are booked at their ceilings later."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, *self._tasks, return_exceptions=True)
        self._quiet_until = 0.0
        await self._book_due()
        if self._due:
            LOG.error("governance: %d settlements could not be booked before the stop", len(self._due))
        await self._client.aclose()

    def try_reserve(self, key_id: str, limits: Limits, ask: Ask, now: float) -> None:
        return None

    async def reserve(self, key_id: str, limits: Limits, ask: Ask) -> Answer:
        if ask.tokens < 0 or ask.micro_usd < 0:
            raise ValueError("an ask is never negative")
        reserving = self._spawn(self._reserve(key_id, limits, ask))
        try:
            return await asyncio.shield(reserving)
        except asyncio.CancelledError:
            # The script may be on its way already; what it takes goes back when it answers.
            reserving.add_done_callback(self._abandon)
            raise

    async def renew(self, reservation: Reservation) -> bool:
        if reservation.id not in self._open or not reservation.governed:
            return reservation.id in self._open
        renewed = await self._run(self._renew, reservation.key_id, reservation.id)
        if renewed and reservation.id in self._open:
            self._open[reservation.id] = (reservation, time.monotonic())
        return bool(renewed)

    def settle(
        self, reservation: Reservation, tokens: int, micro_usd: int, *, estimated: bool
    ) -> Awaitable[None] | None:
        if tokens < 0 or micro_usd < 0:
            raise ValueError("usage is never negative")
        return self._ended(reservation, "settle", min(tokens, MOST), min(micro_usd, MOST), estimated)

    def release(self, reservation: Reservation) -> Awaitable[None] | None:
        return self._ended(reservation, "release", 0, 0, False)

    async def usage(self, key_id: str, limits: Limits) -> UsageSnapshot:
        at_ms, flat = await self._run(self._usage, key_id)
        books = dict(zip(flat[::2], flat[1::2], strict=True))
        due = len(self._due)
        health = BackendHealth("redis", "degraded" if due else "healthy", f"{due} settlements wait" if due else None)
        return snapshot(key_id, limits, books, int(at_ms) // 1000, self._span(limits), health)

    async def forget(self, key_id: str) -> None:
        await self._run(self._forget, key_id)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _abandon(self, reserving: asyncio.Task[Answer]) -> None:
        if reserving.cancelled() or reserving.exception() is not None:
            return
        if isinstance(answer := reserving.result(), Reservation):
            self.release(answer)

    async def _reserve(self, key_id: str, limits: Limits, ask: Ask) -> Answer:
        number = self._next_id()
        tokens, micro_usd = min(ask.tokens, MOST), min(ask.micro_usd, MOST)
        span = self._span(limits)
        most = (limits.requests_per_minute, limits.tokens_per_minute, limits.max_tokens, limits.max_micro_usd)
        arguments = (
            number,
            tokens,
            micro_usd,
            *(-1 if one is None else one for one in most),
            *(span or ("", 0, 0))[:2],
        )
        if self._is_quiet():
            return self._without(key_id, limits, ask, QUIET)
        began = time.monotonic()
        try:
            reply = await self._run(self._take, key_id, *arguments)
        except GovernanceUnavailable as error:
            # It may have been done all the same: what it took goes back, and if it comes late it takes nothing.
            self._wait_for_redis(_Booking(Reservation(number, key_id, 0, 0, 0, None), "release", 0, 0, False, began))
            return self._without(key_id, limits, ask, error.reason)
        if reply[0] == "refused":
            return refusal(reply, limits, tokens, micro_usd)
        turn = int(reply[2]) if reply[2] else None
        self._outage.saw(key_id, int(reply[1]), turn, span, [int(one) for one in reply[3:]])
        return self._keep(Reservation(number, key_id, tokens, micro_usd, int(reply[1]), turn))

    def _without(self, key_id: str, limits: Limits, ask: Ask, reason: str) -> Answer:
        return self._keep(self._outage.answer(self._next_id(), key_id, limits, ask, self._now(), reason))

    def _next_id(self) -> str:
        return f"{self._process}-{next(self._numbers)}"

    def _keep(self, answer: Answer) -> Answer:
        if isinstance(answer, Reservation):
            self._open[answer.id] = (answer, time.monotonic())
        return answer

    def _ended(
        self, reservation: Reservation, how: Literal["settle", "release"], tokens: int, micro_usd: int, estimated: bool
    ) -> Awaitable[None] | None:
        known = self._open.pop(reservation.id, None)
        if known is None:
            return None
        if not reservation.governed:
            self._outage.ended(reservation, tokens if how == "settle" else None, micro_usd)
            if how == "release":
                return None
        booking = _Booking(reservation, how, tokens, micro_usd, estimated, known[1])
        return asyncio.shield(self._spawn(self._book_or_wait(booking)))

    async def _book_or_wait(self, booking: _Booking) -> None:
        try:
            await self._book(booking)
        except GovernanceUnavailable:
            self._wait_for_redis(booking)

    def _wait_for_redis(self, booking: _Booking) -> None:
        if len(self._due) < MOST_DUE:
            self._due[booking.reservation.id] = booking
        else:
            LOG.error("governance: too many settlements wait for Redis; one is dropped")

    async def _book(self, booking: _Booking) -> None:
        held = booking.reservation
        # Later than this its lease may have been booked at the ceiling and forgotten: not known means booked.
        fresh = time.monotonic() - booking.held_at <= self._tier.terminal_retention_s
        await self._run(
            self._end,
            held.key_id,
            held.id,
            booking.how,
            booking.tokens,
            booking.micro_usd,
            int(booking.estimated),
            int(fresh or not held.governed),
            held.window,
            ("" if held.span is None else held.span) if held.governed else "*",
        )

    async def _book_due(self) -> None:
        for number, booking in list(self._due.items()):
            try:
                await self._book(booking)
            except GovernanceUnavailable:
                return
            self._due.pop(number, None)

    async def _renew_all(self) -> None:
        """Each at a quarter of its lease at the latest, so that one failure does not let it pass the half."""
        old = time.monotonic() - self._tier.lease_ttl_s / 8
        aged = [held for held, touched in self._open.values() if held.governed and touched <= old]
        for first in range(0, len(aged), RENEWED_AT_ONCE):
            await asyncio.gather(*map(self.renew, aged[first : first + RENEWED_AT_ONCE]))

    async def _every(self, pause_s: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(pause_s)
            try:
                await step()
            except GovernanceUnavailable:
                continue  # said once, where the outage began
            except Exception:
                LOG.exception("governance: keeping the shared ledger failed")

    async def _run(self, script: Any, key_id: str, *arguments: object) -> Any:
        """What the script answers. Raises GovernanceUnavailable, at once while Redis has just failed."""
        if self._is_quiet():
            raise GovernanceUnavailable(QUIET)
        now_ms = -1 if self._clock is None else int(self._clock() * 1000)
        times = (now_ms, int(self._tier.lease_ttl_s * 1000), int(self._tier.terminal_retention_s * 1000))
        try:
            async with asyncio.timeout(self._tier.timeout_s):
                reply = await script(keys=self._keys(key_id), args=[*times, *arguments])
        except (RedisError, OSError, TimeoutError) as error:
            self._quiet_until = time.monotonic() + BACKOFF_S
            if self._outage.began():
                LOG.warning("governance: Redis does not answer: %s", _words(error))
            raise GovernanceUnavailable(_words(error)) from error
        if self._outage.over():
            LOG.warning("governance: Redis answers again")
        return reply

    def _is_quiet(self) -> bool:
        return time.monotonic() < self._quiet_until

    def _keys(self, key_id: str) -> list[str]:
        return [f"{self._tier.prefix}:{{{key_id}}}:{part}" for part in KEY_PARTS]

    def _now(self) -> float:
        return time.time() if self._clock is None else self._clock()

    def _span(self, limits: Limits) -> SpanNow | None:
        return (limits.period.name, *limits.period.span(self._now())) if limits.period.resets else None


def _words(error: Exception) -> str:
    return "it did not answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
