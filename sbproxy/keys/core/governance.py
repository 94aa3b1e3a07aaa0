"""The values of governance: what a key may use, what a request may cost at most, and what is held for it.

Counting is ``ledger`` (one process) or the scripts of the Redis tier; who asks when is the gateway's.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal, Protocol

from sbproxy.errors.governance import GovernanceRefusal
from sbproxy.keys.core.budget_period import LIFETIME, Period

WINDOW_S = 60
"""Rate windows are fixed and begin with the wall clock's minute."""

MOST = 1 << 50
"""Tokens, or micro-USD, that one request is ever booked with: an upstream may report nonsense, and sums stay exact."""

Posture = Literal["closed", "degraded", "open"]


@dataclass(frozen=True, slots=True)
class Limits:
    """None is unlimited; zero lets nothing pass. Rates are for one window; budgets for one span of ``period``.

    With the default period a budget is a total over the key's life: it is never reset, neither at midnight nor by a
    restart (contracts section 8).
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_tokens: int | None = None
    max_micro_usd: int | None = None
    period: Period = LIFETIME


@dataclass(slots=True)
class Ask:
    """The most that one request can use: prompt and answer tokens, millionths of a dollar. Made for every request."""

    tokens: int
    micro_usd: int


@dataclass(slots=True)
class Reservation:
    """What is held for one request until it is settled or released. ``window`` is the minute that let it in, as
    Unix seconds of its start; ``span`` the number of the budget's span, None for a budget that is never reset.

    ``governed`` is False when it was given out without the shared ledger, by posture ``open`` or ``degraded``.
    """

    id: str
    key_id: str
    tokens: int
    micro_usd: int
    window: int
    span: int | None
    governed: bool = True


@dataclass(frozen=True, slots=True)
class CounterUsage:
    """One enforcing counter. ``limit`` and ``remaining`` None: unlimited. ``resets_at`` (Unix seconds) None: never."""

    limit: int | None
    used: int
    reserved: int
    resets_at: int | None

    @property
    def remaining(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.used - self.reserved)


@dataclass(frozen=True, slots=True)
class Totals:
    """Over the key's life, whatever its period; ``estimated_*`` is the part of it that no upstream reported."""

    requests: int = 0
    tokens: int = 0
    micro_usd: int = 0
    estimated_tokens: int = 0
    estimated_micro_usd: int = 0


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """``degraded``: limits are enforced, but ``detail`` keeps the ledger from being durable."""

    type: Literal["local", "redis"]
    status: Literal["healthy", "degraded"]
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """The counters that requests are checked against, read now (document 2, ``GET /admin/keys/{id}/usage``)."""

    key_id: str
    consistency: Literal["approximate", "strict"]
    requests_per_minute: CounterUsage
    tokens_per_minute: CounterUsage
    budget_tokens: CounterUsage
    budget_micro_usd: CounterUsage
    lifetime: Totals
    backend: BackendHealth


Answer = Reservation | GovernanceRefusal
"""A refusal is returned, not raised: it is an everyday answer. Nothing was taken from any counter then."""


class Governor(Protocol):
    """One tier of governance. A reservation ends once, by ``settle`` or ``release``; a second end changes nothing.

    ``settle`` and ``release`` never raise. They return None when the books are right already, else something to await
    before the answer's last byte, so that ``reserved`` is 0 when the client has it (contracts section 50). Not
    awaiting it, or being cancelled in it, loses nothing.
    """

    def try_reserve(self, key_id: str, limits: Limits, ask: Ask, now: float) -> Answer | None:
        """Check all limits, then hold the ask against all counters. ``now`` is Unix seconds.

        None: this tier cannot answer at once, await :meth:`reserve`. ValueError for a negative ask.
        """
        ...

    async def reserve(self, key_id: str, limits: Limits, ask: Ask) -> Answer:
        """The same by the tier's own clock, with waiting. A cancelled call holds nothing in the end."""
        ...

    async def renew(self, reservation: Reservation) -> bool:
        """Prolong the lease; False when the reservation is open no more. Tiers renew by themselves as well."""
        ...

    def settle(
        self, reservation: Reservation, tokens: int, micro_usd: int, *, estimated: bool
    ) -> Awaitable[None] | None:
        """Book what the request used, above its ceiling too. ``estimated``: no upstream reported these figures.

        For everything that reached a model, cancelled or refused by it included; such a request keeps its place in
        the minute even when it used no tokens.
        """
        ...

    def release(self, reservation: Reservation) -> Awaitable[None] | None:
        """Give everything back, the place in the minute included: the request never reached a model."""
        ...

    async def usage(self, key_id: str, limits: Limits) -> UsageSnapshot:
        """Raises GovernanceUnavailable when the shared ledger does not answer."""
        ...

    async def forget(self, key_id: str) -> None:
        """Drop the counters of a deleted key. Raises GovernanceUnavailable."""
        ...
