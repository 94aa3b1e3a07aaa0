"""The books of one process: a clock that never goes back, refusals that cost nothing, and no limit ever passed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from sbproxy.errors.governance import BudgetExhausted, GovernanceRefusal, RateExceeded
from sbproxy.keys.core.budget_period import DAILY, LIFETIME, Period
from sbproxy.keys.core.governance import MOST, Ask, BackendHealth, Limits, Reservation, UsageSnapshot
from sbproxy.keys.core.ledger import Ledger, LedgerClock

NOON = 1_800_000_000 // 86400 * 86400 + 43200.0
HEALTHY = BackendHealth("local", "healthy")


def take(ledger: Ledger, name: str, limits: Limits, tokens: int = 0, micro_usd: int = 0, now: float = NOON) -> Any:
    return ledger.take(name, "key", limits, Ask(tokens, micro_usd), now)


def usage(ledger: Ledger, limits: Limits, now: float = NOON) -> UsageSnapshot:
    return ledger.usage("key", limits, now, HEALTHY)


def test_a_clock_that_follows_the_wall_is_the_wall() -> None:
    clock = LedgerClock()
    assert [clock.at(now) for now in (5.0, 5.0, 70.5, 1e9)] == [5.0, 5.0, 70.5, 1e9]
    assert clock.wait(1e9 + 59.5) == 60


def test_a_clock_set_back_runs_at_half_speed_until_the_wall_has_caught_up() -> None:
    clock = LedgerClock()
    clock.at(1000.0)
    assert clock.at(900.0) == 1000.0
    assert clock.at(920.0) == 1010.0
    assert clock.wait(1020.0) == 20
    assert clock.at(1100.0) == 1100.0
    assert clock.wait(1110.0) == 10


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_ledger_time_never_goes_back_and_never_lags(walls: list[float]) -> None:
    clock = LedgerClock()
    shown = [clock.at(wall) for wall in walls]
    assert shown == sorted(shown)
    assert all(time >= wall for time, wall in zip(shown, walls, strict=True))


def test_a_clock_set_back_opens_no_second_minute() -> None:
    ledger, limits = Ledger(), Limits(requests_per_minute=2)
    assert isinstance(take(ledger, "a", limits), Reservation)
    assert isinstance(take(ledger, "b", limits, now=NOON + 30), Reservation)
    for step in range(120):
        assert isinstance(take(ledger, "c", limits, now=NOON - 3600 + step / 4), RateExceeded)
    # ... and shuts nobody out for the hour that the clock was set back.
    assert isinstance(take(ledger, "d", limits, now=NOON - 3600 + 62), Reservation)


def test_a_clock_that_was_set_back_over_a_restart_opens_no_second_minute() -> None:
    before, limits = Ledger(), Limits(requests_per_minute=1)
    take(before, "a", limits)
    before.settle("a", 1, 1, estimated=False)
    row = before.row("key")
    assert row is not None
    after = Ledger([row])
    assert isinstance(take(after, "b", limits, now=NOON - 600), RateExceeded)


def test_a_refusal_names_the_limit_and_costs_nothing() -> None:
    ledger = Ledger()
    limits = Limits(requests_per_minute=5, tokens_per_minute=100, max_tokens=1000, max_micro_usd=50)
    assert isinstance(take(ledger, "a", limits, 60, 10, NOON + 20.5), Reservation)
    before = usage(ledger, limits, NOON + 20.5)
    refused = take(ledger, "b", limits, 41, 1, NOON + 20.5)
    assert isinstance(refused, RateExceeded)
    assert (refused.counter, refused.limit, refused.used, refused.reserved, refused.asked) == (
        "tokens_per_minute", 100, 0, 60, 41,
    )  # fmt: skip
    assert refused.retry_after_s == 40
    assert isinstance(take(ledger, "c", limits, 1, 41, NOON + 20.5), BudgetExhausted)
    assert usage(ledger, limits, NOON + 20.5) == before
    assert isinstance(take(ledger, "d", limits, 40, 40, NOON + 20.5), Reservation)


def test_a_budget_is_named_before_a_rate() -> None:
    limits = Limits(requests_per_minute=0, max_tokens=0)
    refused = take(Ledger(), "a", limits, 1)
    assert isinstance(refused, BudgetExhausted)
    assert refused.counter == "max_tokens"


def test_an_empty_budget_lets_nothing_pass_not_even_what_is_free() -> None:
    ledger, limits = Ledger(), Limits(max_micro_usd=10)
    take(ledger, "a", limits, 5, 10)
    ledger.settle("a", 5, 10, estimated=False)
    assert isinstance(take(ledger, "b", limits, 5, 0), BudgetExhausted)


def test_what_was_used_above_the_ceiling_is_booked_all_the_same() -> None:
    ledger, limits = Ledger(), Limits(max_tokens=100)
    take(ledger, "a", limits, 10)
    ledger.settle("a", 150, 0, estimated=False)
    counter = usage(ledger, limits).budget_tokens
    assert (counter.used, counter.reserved, counter.remaining) == (150, 0, 0)


def test_a_request_counts_in_the_minute_that_let_it_in() -> None:
    ledger, limits = Ledger(), Limits(requests_per_minute=1, tokens_per_minute=100)
    take(ledger, "a", limits, 100)
    assert isinstance(take(ledger, "b", limits, 100, now=NOON + 60), Reservation)
    ledger.settle("a", 100, 0, estimated=False)
    now = usage(ledger, limits, NOON + 61)
    assert (now.tokens_per_minute.used, now.tokens_per_minute.reserved) == (0, 100)
    assert now.requests_per_minute.reserved == 1
    assert now.lifetime.tokens == 100


def test_a_period_resets_and_a_lifetime_does_not() -> None:
    daily, total = Limits(max_tokens=10, period=DAILY), Limits(max_tokens=10)
    for limits, answer in ((daily, Reservation), (total, BudgetExhausted)):
        ledger = Ledger()
        take(ledger, "a", limits, 10)
        ledger.settle("a", 10, 0, estimated=True)
        assert isinstance(take(ledger, "b", limits, 10, now=NOON + 43199), BudgetExhausted)
        assert isinstance(take(ledger, "c", limits, 10, now=NOON + 43200), answer)
        assert usage(ledger, limits, NOON + 43200).lifetime.estimated_tokens == 10
    assert usage(ledger, total, NOON).budget_tokens.resets_at is None
    assert usage(Ledger(), daily, NOON).budget_tokens.resets_at == NOON + 43200


def test_a_change_of_period_and_back_leaves_no_negative_hold() -> None:
    ledger, daily = Ledger(), Limits(max_tokens=10, period=DAILY)
    hourly = Limits(max_tokens=10, period=Period("1h", 3600))
    take(ledger, "a", daily, 7)
    take(ledger, "b", hourly, 7)
    take(ledger, "c", daily, 7)
    ledger.release("a")
    ledger.release("b")
    assert usage(ledger, daily).budget_tokens.reserved == 7


def test_negative_figures_are_a_mistake_of_the_caller() -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="never negative"):
        take(ledger, "a", Limits(), -1)
    take(ledger, "a", Limits())
    with pytest.raises(ValueError, match="never negative"):
        ledger.settle("a", 1, -1, estimated=False)


def test_a_nonsense_figure_is_booked_as_the_most() -> None:
    ledger = Ledger()
    take(ledger, "a", Limits(), 1 << 90, 1 << 90)
    ledger.settle("a", 1 << 90, 1 << 90, estimated=False)
    assert usage(ledger, Limits()).lifetime.tokens == MOST


def test_a_forgotten_key_begins_anew_and_its_open_requests_end_without_effect() -> None:
    ledger, limits = Ledger(), Limits(max_tokens=10)
    take(ledger, "a", limits, 10)
    assert ledger.forget("key") == ["a"]
    assert isinstance(take(ledger, "b", limits, 10), Reservation)
    assert ledger.settle("a", 10, 0, estimated=False) is None
    assert usage(ledger, limits).budget_tokens.reserved == 10


class Books(RuleBasedStateMachine):
    """Any order of asking, ending and waiting, against a model that keeps nothing but the requests themselves."""

    requests = Bundle("requests")
    limits = Limits(requests_per_minute=4, tokens_per_minute=60, max_tokens=200, max_micro_usd=100)

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.now = NOON
        self.count = 0
        self.open: dict[str, Reservation] = {}
        self.booked: list[tuple[Reservation, int, int]] = []

    def counted(self) -> dict[str, tuple[int, int]]:
        window = self.ledger.usage("key", self.limits, self.now, HEALTHY).requests_per_minute.resets_at
        assert window is not None
        here = [one for one in self.open.values() if one.window == window - 60]
        used = [(one, tokens) for one, tokens, _ in self.booked if one.window == window - 60]
        return {
            "requests_per_minute": (len(used), len(here)),
            "tokens_per_minute": (sum(tokens for _, tokens in used), sum(one.tokens for one in here)),
            "budget_tokens": (sum(t for _, t, _ in self.booked), sum(one.tokens for one in self.open.values())),
            "budget_micro_usd": (sum(m for _, _, m in self.booked), sum(one.micro_usd for one in self.open.values())),
        }

    @rule(target=requests, tokens=st.integers(0, 50), micro_usd=st.integers(0, 30))
    def ask(self, tokens: int, micro_usd: int) -> Any:
        before = self.counted()
        self.count += 1
        answer = self.ledger.take(str(self.count), "key", self.limits, Ask(tokens, micro_usd), self.now)
        room = {
            "requests_per_minute": (4, 1),
            "tokens_per_minute": (60, tokens),
            "budget_tokens": (200, tokens),
            "budget_micro_usd": (100, micro_usd),
        }
        fits = all(
            sum(before[name]) + asked <= limit and before[name][0] < limit for name, (limit, asked) in room.items()
        )
        assert isinstance(answer, Reservation) is fits
        if isinstance(answer, GovernanceRefusal):
            assert self.counted() == before
            return multiple()
        self.open[answer.id] = answer
        return answer

    @rule(held=consumes(requests), part=st.floats(0, 1), estimated=st.booleans())
    def settle(self, held: Reservation, part: float, estimated: bool) -> None:
        tokens, micro_usd = int(held.tokens * part), int(held.micro_usd * part)
        if self.open.pop(held.id, None) is not None:
            assert self.ledger.settle(held.id, tokens, micro_usd, estimated=estimated) is held
            self.booked.append((held, tokens, micro_usd))
        assert self.ledger.settle(held.id, 50, 50, estimated=False) is None

    @rule(held=consumes(requests))
    def release(self, held: Reservation) -> None:
        if self.open.pop(held.id, None) is not None:
            assert self.ledger.release(held.id) is held
        assert self.ledger.release(held.id) is None

    @rule(step=st.floats(-200, 200))
    def wait(self, step: float) -> None:
        self.now += step

    @rule()
    def die_and_start(self) -> None:
        row = self.ledger.row("key")
        self.ledger = Ledger([] if row is None else [row], self.open.values())
        self.booked += [(held, held.tokens, held.micro_usd) for held in self.open.values()]
        self.open.clear()

    @invariant()
    def the_counters_are_what_the_requests_come_to(self) -> None:
        shown = self.ledger.usage("key", self.limits, self.now, HEALTHY)
        for name, (used, held) in self.counted().items():
            counter = getattr(shown, name)
            assert (counter.used, counter.reserved) == (used, held)
            assert 0 <= used + held <= counter.limit
            assert counter.remaining == counter.limit - used - held


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_the_default_budget_is_a_total() -> None:
    assert Limits().period is LIFETIME
