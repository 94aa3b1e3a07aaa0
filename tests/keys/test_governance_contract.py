"""One suite for both tiers of governance: the same cases, the same answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from sbproxy.errors.governance import BudgetExhausted, GovernanceRefusal, RateExceeded
from sbproxy.keys.core.budget_period import DAILY
from sbproxy.keys.core.governance import Ask, Governor, Limits, Reservation, UsageSnapshot
from sbproxy.keys.governance_local import LocalGovernor
from sbproxy.keys.governance_redis import RedisGovernor, RedisTier
from support.redis_process import RedisProcess

NOON = 1_800_000_000 // 86400 * 86400 + 43200.0
KEYS = (f"{number:016x}" for number in count())


@dataclass
class Clock:
    now: float = NOON

    def __call__(self) -> float:
        return self.now


@dataclass
class Tier:
    governor: Governor
    clock: Clock
    key: str

    async def ask(self, limits: Limits, tokens: int = 0, micro_usd: int = 0) -> Reservation | GovernanceRefusal:
        ask = Ask(tokens, micro_usd)
        at_once = self.governor.try_reserve(self.key, limits, ask, self.clock.now)
        return at_once if at_once is not None else await self.governor.reserve(self.key, limits, ask)

    async def held(self, limits: Limits, tokens: int = 0, micro_usd: int = 0) -> Reservation:
        answer = await self.ask(limits, tokens, micro_usd)
        assert isinstance(answer, Reservation), answer
        return answer

    async def settle(self, held: Reservation, tokens: int, micro_usd: int = 0, *, estimated: bool = False) -> None:
        await booked(self.governor.settle(held, tokens, micro_usd, estimated=estimated))

    async def release(self, held: Reservation) -> None:
        await booked(self.governor.release(held))

    async def usage(self, limits: Limits) -> UsageSnapshot:
        return await self.governor.usage(self.key, limits)


async def booked(pending: Awaitable[None] | None) -> None:
    if pending is not None:
        await pending


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    redis = RedisProcess(tmp_path_factory.mktemp("redis"), durable=False)
    redis.start()
    yield redis.url
    redis.stop()


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.e2e)])
async def tier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tier]:
    clock = Clock()
    governor: LocalGovernor | RedisGovernor
    if request.param == "local":
        governor = await asyncio.to_thread(LocalGovernor, tmp_path / "governance.sqlite3", clock=clock)
    else:
        governor = RedisGovernor.connect(request.getfixturevalue("redis_url"), RedisTier(timeout_s=10), clock=clock)
        governor.start()
    yield Tier(governor, clock, next(KEYS))
    await governor.close()


async def test_an_unlimited_key_is_counted_all_the_same(tier: Tier) -> None:
    held = await tier.held(Limits(), 100, 7)
    usage = await tier.usage(Limits())
    assert (usage.budget_tokens.reserved, usage.budget_micro_usd.reserved) == (100, 7)
    assert usage.budget_tokens.remaining is None
    await tier.settle(held, 60, 4)
    usage = await tier.usage(Limits())
    assert (usage.budget_tokens.used, usage.budget_tokens.reserved) == (60, 0)
    assert (usage.requests_per_minute.used, usage.tokens_per_minute.used) == (1, 60)
    assert (usage.lifetime.requests, usage.lifetime.tokens, usage.lifetime.micro_usd) == (1, 60, 4)
    assert usage.backend.status == "healthy"


@pytest.mark.parametrize(
    ("limits", "asks", "kind", "counter"),
    [
        (Limits(requests_per_minute=2), [(1, 1)] * 2, RateExceeded, "requests_per_minute"),
        (Limits(tokens_per_minute=100), [(60, 0), (40, 0)], RateExceeded, "tokens_per_minute"),
        (Limits(max_tokens=100), [(60, 0), (40, 0)], BudgetExhausted, "max_tokens"),
        (Limits(max_micro_usd=100), [(1, 60), (1, 40)], BudgetExhausted, "max_micro_usd"),
        (Limits(max_tokens=100, period=DAILY), [(60, 0), (40, 0)], BudgetExhausted, "max_tokens"),
    ],
)
async def test_a_limit_is_reached_exactly(
    tier: Tier, limits: Limits, asks: list[tuple[int, int]], kind: type, counter: str
) -> None:
    for tokens, micro_usd in asks:
        await tier.held(limits, tokens, micro_usd)
    refused = await tier.ask(limits, 1, 1)
    assert type(refused) is kind
    assert refused.counter == counter


async def test_a_zero_limit_lets_nothing_pass(tier: Tier) -> None:
    assert isinstance(await tier.ask(Limits(max_micro_usd=0)), BudgetExhausted)
    assert isinstance(await tier.ask(Limits(requests_per_minute=0)), RateExceeded)


async def test_a_refusal_costs_nothing(tier: Tier) -> None:
    limits = Limits(requests_per_minute=3, tokens_per_minute=100, max_tokens=200, max_micro_usd=50)
    await tier.held(limits, 90, 10)
    before = await tier.usage(limits)
    for tokens, micro_usd in ((11, 0), (1, 41), (150, 0)):
        assert isinstance(await tier.ask(limits, tokens, micro_usd), GovernanceRefusal)
    assert await tier.usage(limits) == before


async def test_retry_after_is_the_time_to_the_end_of_the_minute(tier: Tier) -> None:
    limits = Limits(requests_per_minute=1)
    tier.clock.now = NOON + 12.25
    await tier.held(limits)
    refused = await tier.ask(limits)
    assert isinstance(refused, RateExceeded)
    assert refused.retry_after_s == 48
    assert (await tier.usage(limits)).requests_per_minute.resets_at == NOON + 60
    tier.clock.now = NOON + 60
    await tier.held(limits)


async def test_settling_gives_back_what_was_not_used(tier: Tier) -> None:
    limits = Limits(tokens_per_minute=100, max_tokens=100, max_micro_usd=100)
    held = await tier.held(limits, 100, 100)
    assert isinstance(await tier.ask(limits, 1, 1), GovernanceRefusal)
    await tier.settle(held, 30, 20)
    usage = await tier.usage(limits)
    assert (usage.tokens_per_minute.remaining, usage.budget_tokens.remaining) == (70, 70)
    assert usage.budget_micro_usd.remaining == 80


async def test_a_cancelled_stream_is_booked_at_its_estimate(tier: Tier) -> None:
    limits = Limits(max_tokens=1000)
    await tier.settle(await tier.held(limits, 500, 9), 41, 3, estimated=True)
    await tier.settle(await tier.held(limits, 500, 9), 10, 1)
    usage = await tier.usage(limits)
    assert usage.budget_tokens.used == 51
    assert (usage.lifetime.estimated_tokens, usage.lifetime.estimated_micro_usd) == (41, 3)


async def test_a_release_gives_back_the_place_in_the_minute_too(tier: Tier) -> None:
    limits = Limits(requests_per_minute=1, max_tokens=10)
    await tier.release(await tier.held(limits, 10))
    held = await tier.held(limits, 10)
    await tier.settle(held, 0)
    assert isinstance(await tier.ask(limits, 10), RateExceeded)
    assert (await tier.usage(limits)).budget_tokens.used == 0


async def test_the_second_end_of_a_reservation_changes_nothing(tier: Tier) -> None:
    limits = Limits(max_tokens=100)
    held, other = await tier.held(limits, 50), await tier.held(limits, 20)
    await tier.settle(held, 30)
    await tier.settle(held, 30)
    await tier.release(held)
    await tier.release(other)
    await tier.settle(other, 20)
    usage = await tier.usage(limits)
    assert (usage.budget_tokens.used, usage.budget_tokens.reserved) == (30, 0)


async def test_renewing_tells_whether_it_is_open(tier: Tier) -> None:
    held = await tier.held(Limits(), 1)
    assert await tier.governor.renew(held)
    await tier.settle(held, 1)
    assert not await tier.governor.renew(held)


async def test_a_daily_budget_begins_anew_at_midnight_and_not_spent(tier: Tier) -> None:
    limits = Limits(max_tokens=100, period=DAILY)
    late = await tier.held(limits, 60)
    tier.clock.now = NOON + 43199
    assert isinstance(await tier.ask(limits, 60), BudgetExhausted)
    tier.clock.now = NOON + 43200
    assert (await tier.usage(limits)).budget_tokens.remaining == 100
    await tier.held(limits, 100)
    await tier.settle(late, 60)
    usage = await tier.usage(limits)
    assert (usage.budget_tokens.used, usage.budget_tokens.reserved) == (0, 100)
    assert usage.budget_tokens.resets_at == NOON + 43200 + 86400
    assert usage.lifetime.tokens == 60


async def test_a_change_of_period_begins_a_fresh_span(tier: Tier) -> None:
    daily, total = Limits(max_tokens=10, period=DAILY), Limits(max_tokens=10)
    held = await tier.held(daily, 10)
    assert isinstance(await tier.ask(daily, 1), BudgetExhausted)
    assert isinstance(await tier.ask(total, 1), BudgetExhausted)
    await tier.release(held)
    await tier.held(total, 10)


async def test_a_clock_set_back_opens_no_second_minute_and_shuts_nobody_out(tier: Tier) -> None:
    limits = Limits(requests_per_minute=2)
    await tier.held(limits)
    tier.clock.now = NOON + 30
    await tier.held(limits)
    for step in range(0, 60, 10):
        tier.clock.now = NOON - 3600 + step
        assert isinstance(await tier.ask(limits), RateExceeded)
    tier.clock.now = NOON - 3600 + 60
    await tier.held(limits)


async def test_a_forgotten_key_begins_anew(tier: Tier) -> None:
    limits = Limits(max_tokens=10)
    await tier.settle(await tier.held(limits, 4), 4)
    late = await tier.held(limits, 6)
    await tier.governor.forget(tier.key)
    await tier.settle(late, 6)
    assert (await tier.usage(limits)).lifetime.tokens == 0
    await tier.held(limits, 10)


async def test_a_negative_ask_is_a_mistake_of_the_caller(tier: Tier) -> None:
    with pytest.raises(ValueError, match="never negative"):
        await tier.ask(Limits(), -1)


async def test_five_parallel_long_calls_never_overspend_a_small_budget(tier: Tier) -> None:
    limits = Limits(max_tokens=1000, max_micro_usd=500)
    running: list[Reservation] = []

    async def call(tokens: int) -> bool:
        answer = await tier.ask(limits, 400, 200)
        if not isinstance(answer, Reservation):
            return False
        running.append(answer)
        # Together they hold no more than there is, at every moment of a long answer.
        assert len(running) <= 2
        await asyncio.sleep(0.05)
        running.remove(answer)
        await tier.settle(answer, tokens, tokens // 2)
        return True

    assert sorted(await asyncio.gather(*(call(400) for _ in range(5)))) == [False, False, False, True, True]
    assert not any(await asyncio.gather(*(call(400) for _ in range(5))))
    usage = await tier.usage(limits)
    assert (usage.budget_tokens.used, usage.budget_tokens.reserved, usage.budget_tokens.remaining) == (800, 0, 200)


async def test_any_order_of_ends_keeps_to_every_limit(tier: Tier) -> None:
    limits = Limits(requests_per_minute=20, tokens_per_minute=500, max_tokens=2000, max_micro_usd=900)
    rng = random.Random(7)
    spent: list[int] = []

    async def caller() -> None:
        for _ in range(12):
            tokens = rng.randrange(90)
            answer = await tier.ask(limits, tokens, tokens // 3)
            await asyncio.sleep(0)
            tier.clock.now += rng.uniform(-3, 8)
            if isinstance(answer, Reservation):
                if rng.random() < 0.3:
                    await tier.release(answer)
                else:
                    spent.append(rng.randint(0, tokens))
                    await tier.settle(answer, spent[-1], spent[-1] // 3, estimated=rng.random() < 0.5)
            usage = await tier.usage(limits)
            for counter in (usage.requests_per_minute, usage.tokens_per_minute, usage.budget_tokens):
                assert counter.used >= 0
                assert counter.reserved >= 0
                assert counter.used + counter.reserved <= (counter.limit or 0)

    await asyncio.gather(*(caller() for _ in range(8)))
    usage = await tier.usage(limits)
    assert (usage.lifetime.tokens, usage.budget_tokens.reserved) == (sum(spent), 0)
