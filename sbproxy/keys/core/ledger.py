"""The books of all keys in one process: decides what fits, holds it, and books what was used. Pure.

Knows neither threads nor files: ``governance_local`` owns a ledger and makes it durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf
from typing import NamedTuple

from sbproxy.errors.governance import BudgetExhausted, GovernanceRefusal, RateExceeded
from sbproxy.keys.core.governance import (
    MOST,
    WINDOW_S,
    Ask,
    BackendHealth,
    CounterUsage,
    Limits,
    Reservation,
    Totals,
    UsageSnapshot,
)


class LedgerClock:
    """Wall-clock time that never goes back. While it is ahead of a clock that was set back, it runs at half speed.

    Standing still instead would shut a key out for as long as the clock was set back; following it would open a
    minute, and its limits, a second time. This way a minute lasts two at most.
    """

    __slots__ = ("_last", "_time")

    def __init__(self, not_before: float = -inf) -> None:
        self._time = not_before
        self._last = inf

    def at(self, now: float) -> float:
        if now >= self._time:
            self._time = self._last = now
            return now
        if now > self._last:
            self._time = max(now, self._time + (now - self._last) / 2)
        self._last = now
        return self._time

    def wait(self, until: float) -> int:
        """Whole seconds until it will show ``until``; at least 1."""
        pace = 2 if self._time > self._last else 1
        return max(1, ceil((until - self._time) * pace))


class Bucket:
    """What was used and what is held in one window, one span, or a key's life. ``start`` tells it from the next."""

    __slots__ = ("held_micro_usd", "held_requests", "held_tokens", "micro_usd", "requests", "start", "tokens", "until")

    def __init__(
        self, start: int = 0, until: float = -inf, requests: int = 0, tokens: int = 0, micro_usd: int = 0
    ) -> None:
        self.begin(start, until)
        self.requests = requests
        self.tokens = tokens
        self.micro_usd = micro_usd

    def begin(self, start: int, until: float) -> None:
        self.start = start
        self.until = until
        self.requests = self.tokens = self.micro_usd = 0
        self.held_requests = self.held_tokens = self.held_micro_usd = 0

    def hold(self, tokens: int, micro_usd: int) -> None:
        self.held_requests += 1
        self.held_tokens += tokens
        self.held_micro_usd += micro_usd

    def drop(self, tokens: int, micro_usd: int) -> None:
        self.held_requests -= 1
        self.held_tokens -= tokens
        self.held_micro_usd -= micro_usd

    def book(self, tokens: int, micro_usd: int) -> None:
        self.requests += 1
        self.tokens += tokens
        self.micro_usd += micro_usd


class Account:
    """One key's books. ``span_name`` names the period of ``span``; "" when its budgets were never in spans.

    ``turn`` counts the spans: after a change of period and back, the same day is another span.
    """

    __slots__ = ("estimated_micro_usd", "estimated_tokens", "life", "span", "span_name", "turn", "window")

    def __init__(self) -> None:
        self.window = Bucket()
        self.span = Bucket()
        self.span_name = ""
        self.turn = 0
        self.life = Bucket(0, inf)
        self.estimated_tokens = 0
        self.estimated_micro_usd = 0


class AccountRow(NamedTuple):
    """An account as a store keeps it, without what is held: open reservations are kept one by one."""

    key_id: str
    requests: int
    tokens: int
    micro_usd: int
    estimated_tokens: int
    estimated_micro_usd: int
    window: int
    window_requests: int
    window_tokens: int
    turn: int
    span_name: str
    span_start: int
    span_end: int
    span_tokens: int
    span_micro_usd: int


class Ledger:
    """Check all, then take all: a refusal changes nothing (field report 64).

    What is used and held together never exceeds a limit; only a request that uses more than its own ceiling can carry
    the used part over it. A request counts in the window and span that it was let in by, however long it runs.
    """

    def __init__(self, rows: Iterable[AccountRow] = (), open_before: Iterable[Reservation] = ()) -> None:
        """Books as a store kept them. ``open_before`` was open when the last process died, and is booked whole."""
        self._accounts = {row.key_id: _account(row) for row in rows}
        latest = max((account.window.start for account in self._accounts.values()), default=-inf)
        self._clock = LedgerClock(latest)
        self._open: dict[str, Reservation] = {}
        for left in open_before:
            # What it used died with its process, and its answer may have been whole: less would let a key overspend.
            self._book(self._accounts.setdefault(left.key_id, Account()), left, left.tokens, left.micro_usd, True)

    def take(
        self, reservation_id: str, key_id: str, limits: Limits, ask: Ask, now: float
    ) -> Reservation | GovernanceRefusal:
        tokens, micro_usd = min(ask.tokens, MOST), min(ask.micro_usd, MOST)
        if tokens < 0 or micro_usd < 0:
            raise ValueError("an ask is never negative")
        account = self._accounts.get(key_id)
        if account is None:
            account = self._accounts[key_id] = Account()
        span = self._turn(account, limits, now)
        window = account.window
        budget = account.life if span is None else account.span
        refused = _over_budget(budget, limits, ask) or self._over_rate(window, limits, tokens)
        if refused is not None:
            return refused
        window.hold(tokens, micro_usd)
        account.life.hold(tokens, micro_usd)
        if span is not None:
            account.span.hold(tokens, micro_usd)
        held = Reservation(reservation_id, key_id, tokens, micro_usd, window.start, span)
        self._open[reservation_id] = held
        return held

    def settle(self, reservation_id: str, tokens: int, micro_usd: int, *, estimated: bool) -> Reservation | None:
        """The reservation that ended, or None when it was open no more."""
        if tokens < 0 or micro_usd < 0:
            raise ValueError("usage is never negative")
        held = self._end(reservation_id)
        account = None if held is None else self._accounts.get(held.key_id)
        if held is not None and account is not None:
            self._book(account, held, min(tokens, MOST), min(micro_usd, MOST), estimated)
        return held

    def release(self, reservation_id: str) -> Reservation | None:
        return self._end(reservation_id)

    def is_open(self, reservation_id: str) -> bool:
        return reservation_id in self._open

    def forget(self, key_id: str) -> list[str]:
        """Drop a key's books, and its open reservations, whose ids are returned."""
        self._accounts.pop(key_id, None)
        dropped = [held.id for held in self._open.values() if held.key_id == key_id]
        for reservation_id in dropped:
            del self._open[reservation_id]
        return dropped

    def row(self, key_id: str) -> AccountRow | None:
        account = self._accounts.get(key_id)
        return None if account is None else _row(key_id, account)

    def usage(self, key_id: str, limits: Limits, now: float, backend: BackendHealth) -> UsageSnapshot:
        account = self._accounts.get(key_id) or Account()
        span = self._turn(account, limits, now)
        window, life = account.window, account.life
        budget, resets_at = (life, None) if span is None else (account.span, int(account.span.until))
        end = int(window.until)
        return UsageSnapshot(
            key_id=key_id,
            consistency="approximate",
            requests_per_minute=CounterUsage(limits.requests_per_minute, window.requests, window.held_requests, end),
            tokens_per_minute=CounterUsage(limits.tokens_per_minute, window.tokens, window.held_tokens, end),
            budget_tokens=CounterUsage(limits.max_tokens, budget.tokens, budget.held_tokens, resets_at),
            budget_micro_usd=CounterUsage(limits.max_micro_usd, budget.micro_usd, budget.held_micro_usd, resets_at),
            lifetime=Totals(
                life.requests, life.tokens, life.micro_usd, account.estimated_tokens, account.estimated_micro_usd
            ),
            backend=backend,
        )

    def _turn(self, account: Account, limits: Limits, now: float) -> int | None:
        """Begin the window and the span anew where they are over; the number of the span if budgets have spans."""
        at = self._clock.at(now)
        if at >= account.window.until:
            start = int(at // WINDOW_S) * WINDOW_S
            account.window.begin(start, start + WINDOW_S)
        period = limits.period
        if not period.resets:
            return None
        if at >= account.span.until or account.span_name != period.name:
            account.span_name = period.name
            account.turn += 1
            account.span.begin(*period.span(at))
        return account.turn

    def _over_rate(self, window: Bucket, limits: Limits, tokens: int) -> RateExceeded | None:
        most = limits.requests_per_minute
        if most is not None and _over(most, window.requests, window.held_requests, 1):
            return RateExceeded(
                "requests_per_minute", most, window.requests, window.held_requests, 1, self._clock.wait(window.until)
            )
        most = limits.tokens_per_minute
        if most is not None and _over(most, window.tokens, window.held_tokens, tokens):
            return RateExceeded(
                "tokens_per_minute", most, window.tokens, window.held_tokens, tokens, self._clock.wait(window.until)
            )
        return None

    def _end(self, reservation_id: str) -> Reservation | None:
        held = self._open.pop(reservation_id, None)
        account = None if held is None else self._accounts.get(held.key_id)
        if held is not None and account is not None:
            for bucket in _buckets(account, held):
                bucket.drop(held.tokens, held.micro_usd)
        return held

    def _book(self, account: Account, held: Reservation, tokens: int, micro_usd: int, estimated: bool) -> None:
        for bucket in _buckets(account, held):
            bucket.book(tokens, micro_usd)
        if estimated:
            account.estimated_tokens += tokens
            account.estimated_micro_usd += micro_usd


def _over_budget(budget: Bucket, limits: Limits, ask: Ask) -> BudgetExhausted | None:
    # Budgets before rates: nobody is told to come back in a minute to a budget that stays empty.
    most = limits.max_tokens
    if most is not None and _over(most, budget.tokens, budget.held_tokens, ask.tokens):
        return BudgetExhausted("max_tokens", most, budget.tokens, budget.held_tokens, ask.tokens)
    most = limits.max_micro_usd
    if most is not None and _over(most, budget.micro_usd, budget.held_micro_usd, ask.micro_usd):
        return BudgetExhausted("max_micro_usd", most, budget.micro_usd, budget.held_micro_usd, ask.micro_usd)
    return None


def _over(limit: int, used: int, held: int, asked: int) -> bool:
    # A budget that is used up lets nothing pass, not even what costs nothing (field report 66).
    return used + held + asked > limit or used >= limit


def _buckets(account: Account, held: Reservation) -> list[Bucket]:
    """Those that still are the ones it was let in by."""
    buckets = [account.life]
    if account.window.start == held.window:
        buckets.append(account.window)
    if held.span == account.turn:
        buckets.append(account.span)
    return buckets


def _account(row: AccountRow) -> Account:
    account = Account()
    account.life = Bucket(0, inf, row.requests, row.tokens, row.micro_usd)
    account.window = Bucket(row.window, row.window + WINDOW_S, row.window_requests, row.window_tokens)
    account.span = Bucket(row.span_start, row.span_end, 0, row.span_tokens, row.span_micro_usd)
    account.span_name = row.span_name
    account.turn = row.turn
    account.estimated_tokens = row.estimated_tokens
    account.estimated_micro_usd = row.estimated_micro_usd
    return account


def _row(key_id: str, account: Account) -> AccountRow:
    life, window, span = account.life, account.window, account.span
    return AccountRow(
        key_id,
        life.requests,
        life.tokens,
        life.micro_usd,
        account.estimated_tokens,
        account.estimated_micro_usd,
        window.start,
        window.requests,
        window.tokens,
        account.turn,
        account.span_name,
        span.start,
        int(span.until) if account.span_name else 0,
        span.tokens,
        span.micro_usd,
    )
