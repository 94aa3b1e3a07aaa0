"""The strict tier over a real Redis: leases, several processes, Redis killed, frozen and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from sbproxy.errors.governance import BudgetExhausted, GovernanceUnavailable, RateExceeded
from sbproxy.keys.core.budget_period import DAILY
from sbproxy.keys.core.governance import Answer, Ask, Limits, Reservation, UsageSnapshot
from sbproxy.keys.governance_redis import BACKOFF_S, RedisGovernor, RedisTier
from support.redis_process import RedisProcess

pytestmark = pytest.mark.e2e

NOON = 1_800_000_000 // 86400 * 86400 + 43200.0
KEY = "00000000000000aa"
BUDGET = Limits(max_tokens=100)


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path)
    process.start()
    yield process
    process.stop()


Start = Callable[..., RedisGovernor]


@pytest.fixture
async def start(redis: RedisProcess) -> AsyncIterator[Start]:
    """Begins one more process' governor; ``keep`` False: it renews and retries nothing, as if it were dead."""
    running: list[RedisGovernor] = []

    def begin(
        tier: RedisTier | None = None,
        *,
        clock: Clock | None = None,
        keep: bool = True,
        failed_open: Callable[[str], None] = lambda key_id: None,
    ) -> RedisGovernor:
        governor = RedisGovernor.connect(
            redis.url, tier or RedisTier(timeout_s=5), clock=clock, failed_open=failed_open
        )
        running.append(governor)
        if keep:
            governor.start()
        return governor

    yield begin
    for governor in running:
        await governor.close()


async def ask(governor: RedisGovernor, tokens: int, limits: Limits = BUDGET) -> Answer:
    assert governor.try_reserve(KEY, limits, Ask(tokens, 0), time.time()) is None
    return await governor.reserve(KEY, limits, Ask(tokens, 0))


async def held(governor: RedisGovernor, tokens: int, limits: Limits = BUDGET) -> Reservation:
    answer = await ask(governor, tokens, limits)
    assert isinstance(answer, Reservation), answer
    return answer


async def booked(pending: Awaitable[None] | None) -> None:
    if pending is not None:
        await pending


async def settled(governor: RedisGovernor, reservation: Reservation, tokens: int) -> None:
    await booked(governor.settle(reservation, tokens, 0, estimated=False))


async def counted(governor: RedisGovernor) -> tuple[int, int]:
    budget = (await governor.usage(KEY, BUDGET)).budget_tokens
    return budget.used, budget.reserved


async def until(governor: RedisGovernor, used: int, reserved: int) -> UsageSnapshot:
    end = time.monotonic() + 10
    while True:
        try:
            if await counted(governor) == (used, reserved):
                return await governor.usage(KEY, BUDGET)
        except GovernanceUnavailable:
            pass
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def test_two_processes_share_one_budget(start: Start) -> None:
    one, two = start(), start()
    answers = await asyncio.gather(*(ask(governor, 30) for governor in (one, two) * 5))
    let_in = [answer for answer in answers if isinstance(answer, Reservation)]
    assert len(let_in) == 3
    assert all(isinstance(answer, BudgetExhausted) for answer in answers if answer not in let_in)
    assert await counted(one) == await counted(two) == (0, 90)


async def test_two_processes_share_one_minute_by_the_clock_of_redis(start: Start) -> None:
    limits = Limits(requests_per_minute=3)
    answers = [await ask(governor, 1, limits) for governor in (start(), start()) for _ in range(4)]
    refused = [answer for answer in answers if isinstance(answer, RateExceeded)]
    assert len(refused) >= 2  # a minute may end in the middle
    assert all(1 <= answer.retry_after_s <= 60 for answer in refused)


async def test_the_lease_of_a_dead_process_is_booked_at_its_ceiling(start: Start) -> None:
    clock = Clock()
    dead, alive = start(clock=clock, keep=False), start(clock=clock)
    await held(dead, 60)
    clock.now += 119
    assert await counted(alive) == (0, 60)
    clock.now += 1
    usage = await alive.usage(KEY, BUDGET)
    assert (usage.budget_tokens.used, usage.budget_tokens.reserved) == (60, 0)
    assert usage.lifetime.estimated_tokens == 60
    assert isinstance(await ask(alive, 41), BudgetExhausted)


async def test_a_late_settlement_puts_the_real_figure_in_place_of_the_ceiling_once(start: Start) -> None:
    clock = Clock()
    slow, other = start(clock=clock, keep=False), start(clock=clock)
    late, failed = await held(slow, 60), await held(slow, 30)
    clock.now += 121
    assert await counted(other) == (90, 0)
    await settled(slow, late, 25)
    await booked(slow.release(failed))
    usage = await other.usage(KEY, BUDGET)
    assert (usage.budget_tokens.used, usage.budget_tokens.reserved) == (25, 0)
    assert (usage.lifetime.requests, usage.lifetime.estimated_tokens) == (1, 0)
    await settled(slow, late, 25)
    assert await counted(other) == (25, 0)


async def test_a_settlement_after_the_retention_is_not_booked_on_top(start: Start) -> None:
    clock = Clock()
    slow, other = start(RedisTier(terminal_retention_s=0.05), clock=clock, keep=False), start(clock=clock)
    late = await held(slow, 60)
    clock.now += 121
    assert await counted(slow) == (60, 0)
    await asyncio.sleep(0.1)
    await settled(slow, late, 25)
    assert await counted(other) == (60, 0)


async def test_renewing_prolongs_the_lease(start: Start) -> None:
    clock = Clock()
    governor = start(clock=clock, keep=False)
    one = await held(governor, 60)
    for _ in range(5):
        clock.now += 60
        assert await governor.renew(one)
    assert await counted(governor) == (0, 60)
    clock.now += 120
    assert await counted(governor) == (60, 0)
    assert not await governor.renew(one)


async def test_open_reservations_are_renewed_without_being_asked(start: Start) -> None:
    tier = RedisTier(lease_ttl_s=0.8, timeout_s=5)
    alive, dead = start(tier), start(tier, keep=False)
    await held(alive, 60)
    await held(dead, 10)
    await until(alive, 10, 60)
    await asyncio.sleep(1.2)
    assert await counted(alive) == (10, 60)


async def test_a_cancelled_reserve_holds_nothing_in_the_end(start: Start, redis: RedisProcess) -> None:
    governor = start()
    await held(governor, 10)
    redis.freeze()
    asking = asyncio.create_task(ask(governor, 50))
    await asyncio.sleep(0.1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    redis.thaw()
    await until(governor, 0, 10)


async def test_a_reserve_that_was_not_answered_in_time_holds_nothing_in_the_end(
    start: Start, redis: RedisProcess
) -> None:
    governor = start(RedisTier(timeout_s=0.2))
    await held(governor, 10)
    redis.freeze()
    began = time.monotonic()
    assert isinstance(await ask(governor, 50), GovernanceUnavailable)
    assert isinstance(await ask(governor, 50), GovernanceUnavailable)
    assert time.monotonic() - began < 0.45  # the second is not made to wait
    redis.thaw()
    usage = await until(governor, 0, 10)
    while usage.backend.status != "healthy":
        usage = await until(governor, 0, 10)
    assert await counted(governor) == (0, 10)


async def test_redis_killed_and_back(start: Start, redis: RedisProcess) -> None:
    governor = start()
    before, over = await held(governor, 40), await held(governor, 20)
    redis.kill()
    refused = await ask(governor, 10)
    assert isinstance(refused, GovernanceUnavailable)
    with pytest.raises(GovernanceUnavailable):
        await governor.usage(KEY, BUDGET)
    await settled(governor, before, 33)
    redis.start()
    await until(governor, 33, 20)
    await held(governor, 40)
    await settled(governor, over, 20)
    assert await counted(governor) == (53, 40)


async def test_a_redis_that_forgot_everything_still_learns_what_is_used_from_then_on(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "forgetful").mkdir()
    redis = RedisProcess(tmp_path / "forgetful", durable=False)
    redis.start()
    governor = RedisGovernor.connect(redis.url, RedisTier(timeout_s=5))
    governor.start()
    one = await held(governor, 40)
    redis.kill()
    redis.start()
    end = time.monotonic() + 10
    while not isinstance(await ask(governor, 0), Reservation):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    await settled(governor, one, 33)
    assert (await counted(governor))[0] == 33
    await governor.close()
    redis.stop()


async def test_posture_open_lets_in_and_books_later(start: Start, redis: RedisProcess) -> None:
    unchecked: list[str] = []
    governor = start(RedisTier(posture="open", timeout_s=5), failed_open=unchecked.append)
    await settled(governor, await held(governor, 90), 90)
    redis.kill()
    one, two = await held(governor, 500), await held(governor, 500)
    assert not one.governed
    assert unchecked == [KEY, KEY]
    await settled(governor, one, 70)
    await booked(governor.release(two))
    redis.start()
    usage = await until(governor, 160, 0)
    assert usage.budget_tokens.remaining == 0
    assert isinstance(await ask(governor, 1), BudgetExhausted)


async def test_what_was_used_in_an_outage_counts_in_the_span_of_the_day(start: Start, redis: RedisProcess) -> None:
    daily = Limits(max_tokens=100, period=DAILY)
    governor = start(RedisTier(posture="open", timeout_s=5), clock=Clock())
    await settled(governor, await held(governor, 10, daily), 10)
    redis.kill()
    await settled(governor, await held(governor, 500, daily), 70)
    redis.start()
    await until(governor, 80, 0)
    assert (await governor.usage(KEY, daily)).budget_tokens.used == 80


async def test_a_take_that_comes_after_its_release_takes_nothing(start: Start) -> None:
    governor = start(keep=False)
    await governor._run(governor._end, KEY, "late", "release", 0, 0, 0, 0, 0, "")
    reply = await governor._run(governor._take, KEY, "late", 50, 0, -1, -1, -1, -1, "", 0)
    assert reply == ["ended"]
    assert await counted(governor) == (0, 0)


async def test_posture_degraded_goes_by_what_it_last_saw(start: Start, redis: RedisProcess) -> None:
    governor = start(RedisTier(posture="degraded", timeout_s=5))
    await settled(governor, await held(governor, 60), 60)
    redis.kill()
    one = await held(governor, 30)
    assert not one.governed
    assert isinstance(await ask(governor, 11), BudgetExhausted)
    await settled(governor, one, 5)
    two = await held(governor, 30)
    await booked(governor.release(two))
    redis.start()
    await until(governor, 65, 0)


async def test_what_waits_is_booked_before_the_stop(start: Start, redis: RedisProcess) -> None:
    leaving, staying = start(keep=False), start()
    one = await held(leaving, 40)
    redis.kill()
    await settled(leaving, one, 12)
    redis.start()
    await leaving.close()
    await until(staying, 12, 0)


async def test_what_is_settled_on_the_way_out_needs_no_awaiting(start: Start) -> None:
    leaving, staying = start(), start()
    governor_calls = [leaving.settle(await held(leaving, 10), 7, 0, estimated=True) for _ in range(5)]
    assert all(call is not None for call in governor_calls)
    await leaving.close()
    assert await counted(staying) == (35, 0)


async def test_the_password_is_in_no_reason(redis: RedisProcess) -> None:
    url = f"redis://someone:canary-secret@127.0.0.1:{redis.port}/0"
    governor = RedisGovernor.connect(url, RedisTier(timeout_s=5))
    wrong = await ask(governor, 1)
    redis.kill()
    await asyncio.sleep(BACKOFF_S + 0.1)
    gone = await ask(governor, 1)
    for answer in (wrong, gone):
        assert isinstance(answer, GovernanceUnavailable)
        assert "canary-secret" not in f"{answer} {answer!r} {governor!r}"
    assert "WRONGPASS" in str(wrong) or "password" in str(wrong)
    assert "connect" in str(gone)
    await governor.close()


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="URL"):
        RedisGovernor.connect("http://127.0.0.1", RedisTier())
