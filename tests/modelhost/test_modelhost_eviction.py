"""Several deployments on memory for fewer: who leaves, who waits, and that everybody is served (field report A2)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from sbproxy.errors.modelhost import AdmissionRejected, InsufficientMemory, InvalidDesired, NoReadyReplica
from sbproxy.errors.tree import SbproxyError
from support.model_host_parts import MIB, World, catalog, eventually, host_config, model

ONE = 160 * MIB
"""Room for one of the made-up models, whose estimate is about 133 MiB, and not for two."""


@pytest.fixture
async def small(tmp_path: Path) -> World:
    return World(tmp_path, memory=ONE)


async def used(world: World, deployment: str) -> None:
    (await world.host.acquire(deployment, "standard")).release()


def state(world: World, deployment: str) -> object:
    return world.row(deployment)["state"]


async def test_an_idle_deployment_makes_room(small: World) -> None:
    await small.apply(a={}, b={})
    await used(small, "a")
    await used(small, "b")
    assert (state(small, "a"), state(small, "b")) == ("stopped", "ready")
    assert small.row("a")["stop_cause"] == "capacity"
    assert small.metrics.seen["evicted", "capacity"] == 1
    await small.close()


async def test_an_active_deployment_is_waited_for(small: World) -> None:
    await small.apply(a={}, b={})
    permit = await small.host.acquire("a", "standard")
    waiting = asyncio.create_task(small.host.acquire("b", "standard"))
    await eventually(lambda: small.row("b")["reason_code"] == "insufficient_capacity")
    assert "held by a" in str(small.row("b")["last_error"])
    assert state(small, "a") == "ready"
    permit.release()
    (await waiting).release()
    await small.close()


async def test_who_comes_after_the_one_that_needs_the_room_waits_behind_it(small: World) -> None:
    """A stream of requests on one deployment cannot keep another out."""
    await small.apply(a={}, b={})
    order: list[str] = []

    async def ask(deployment: str, name: str) -> None:
        permit = await small.host.acquire(deployment, "standard")
        order.append(name)
        await asyncio.sleep(0.005)
        permit.release()

    first = await small.host.acquire("a", "standard")
    before = asyncio.create_task(ask("a", "a-before"))
    await asyncio.sleep(0)
    needy = asyncio.create_task(ask("b", "b"))
    await eventually(lambda: small.row("b")["reason_code"] == "insufficient_capacity")
    after = asyncio.create_task(ask("a", "a-after"))
    await asyncio.sleep(0.01)
    first.release()
    await asyncio.gather(before, needy, after)
    assert order == ["a-before", "b", "a-after"]
    await small.close()


async def test_a_caller_that_gives_up_lets_the_other_go_on(small: World) -> None:
    await small.apply(a={}, b={})
    permit = await small.host.acquire("a", "standard")
    needy = asyncio.create_task(small.host.acquire("b", "standard"))
    await eventually(lambda: small.row("b")["reason_code"] == "insufficient_capacity")
    parked = asyncio.create_task(small.host.acquire("a", "standard"))
    await asyncio.sleep(0.01)
    needy.cancel()
    await eventually(lambda: state(small, "b") == "stopped")
    assert small.row("b")["stop_cause"] == "abandoned"
    permit.release()
    (await parked).release()
    assert state(small, "a") == "ready"
    assert small.metrics.seen["evicted", "capacity"] == 0
    await small.close()


async def test_patience_for_room_is_the_queues_and_the_refusal_tells_all(small: World) -> None:
    await small.apply(a={}, b={"queue_timeout_ms": 40})
    permit = await small.host.acquire("a", "standard")
    with pytest.raises(AdmissionRejected) as refused:
        await small.host.acquire("b", "standard")
    assert refused.value.reason == "queue_timeout"
    assert refused.value.retry_after_ms == 40
    text = str(refused.value)
    assert "1 of 1 in the queue" in text
    assert "needs 132 MiB and is 1 of 1 that wait for room, held by a (132 MiB)" in text
    permit.release()
    await small.close()


async def test_the_pinned_stay(small: World) -> None:
    await small.apply(a={"pinned": True}, b={})
    await used(small, "a")
    with pytest.raises(InsufficientMemory, match="held by a"):
        await small.host.acquire("b", "standard")
    assert state(small, "a") == "ready"
    await small.close()


async def test_eviction_never_displaces_nobody(small: World) -> None:
    config = host_config(a={}, b={})
    config = config.model_copy(update={"cache": config.cache.model_copy(update={"eviction": "never"})})
    await (await small.host.prepare(small.catalog, config)).commit()
    await used(small, "a")
    with pytest.raises(InsufficientMemory, match="held by a"):
        await small.host.acquire("b", "standard")
    await small.close()


async def test_a_model_that_fits_nowhere_evicts_nobody(tmp_path: Path) -> None:
    world = World(tmp_path, memory=ONE)
    world.catalog = catalog(model("one"), model("two"))
    await world.apply(a={}, b={"model": "two"})
    await used(world, "a")
    world.devices.cpu = type(world.devices.cpu)(-1, "cpu", "system memory", 100 * MIB, 90 * MIB)
    with pytest.raises(InsufficientMemory):
        await world.host.acquire("b", "standard")
    assert state(world, "a") == "ready"
    await world.close()


async def test_max_resident_models_is_a_count_over_all_devices(tmp_path: Path) -> None:
    world = World(tmp_path)
    config = host_config(a={}, b={}, c={})
    config = config.model_copy(update={"cache": config.cache.model_copy(update={"max_resident_models": 2})})
    await (await world.host.prepare(world.catalog, config)).commit()
    for name in ("a", "b", "a", "c"):
        await used(world, name)
    assert [state(world, name) for name in "abc"] == ["ready", "stopped", "ready"]
    warm = host_config(a={"warm": True}, b={"warm": True}, c={"warm": True})
    warm = warm.model_copy(update={"cache": config.cache})
    with pytest.raises(InvalidDesired, match=r"cache\.max_resident_models: 2 models may be resident, but a, b, c"):
        await world.host.prepare(world.catalog, warm)
    await world.close()


async def test_who_waits_for_the_count_is_told_the_count(tmp_path: Path) -> None:
    world = World(tmp_path)
    config = host_config(a={}, b={"queue_timeout_ms": 40})
    config = config.model_copy(update={"cache": config.cache.model_copy(update={"max_resident_models": 1})})
    await (await world.host.prepare(world.catalog, config)).commit()
    permit = await world.host.acquire("a", "standard")
    with pytest.raises(AdmissionRejected, match=r"max_resident_models is 1, and it is 1 of 1 .* held by a"):
        await world.host.acquire("b", "standard")
    permit.release()
    await world.close()


async def test_an_evicted_deployment_with_cold_start_reject_refuses_the_parked(small: World) -> None:
    await small.apply(a={"warm": True, "cold_start": "reject"}, b={})
    permit = await small.host.acquire("a", "standard")
    needy = asyncio.create_task(small.host.acquire("b", "standard"))
    await eventually(lambda: small.row("b")["reason_code"] == "insufficient_capacity")
    parked = asyncio.create_task(small.host.acquire("a", "standard"))
    await asyncio.sleep(0.01)
    permit.release()
    with pytest.raises(NoReadyReplica):
        await parked
    (await needy).release()
    await small.close()


async def test_a_request_during_an_unload_waits_for_the_next_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.apply(a={"keep_alive_secs": 0})
    for _ in range(20):
        await used(world, "a")  # each return unloads; the next request comes while that goes on
    await eventually(lambda: state(world, "a") == "stopped")
    await world.close()


async def test_alternating_callers_lose_no_answer(small: World) -> None:
    await small.apply(a={}, b={})
    answers: Counter[str] = Counter()

    async def caller(number: int) -> None:
        for turn in range(6):
            name = "ab"[(number + turn) % 2]
            permit = await small.host.acquire(name, "standard")
            await asyncio.sleep(0.001)
            permit.release()
            answers[name] += 1

    async with asyncio.timeout(20):
        await asyncio.gather(*(caller(number) for number in range(4)))
    assert answers == {"a": 12, "b": 12}
    await small.close()


async def test_everybody_is_served_within_a_round(tmp_path: Path) -> None:
    """N deployments on one slot under constant load: between two turns of one, each other one has at most one turn."""
    names = [f"d{number}" for number in range(4)]
    world = World(tmp_path, memory=ONE)
    await world.apply(**{name: {} for name in names})
    turns: list[str] = []
    running = True

    async def hammer(name: str) -> None:
        while running:
            permit = await world.host.acquire(name, "standard")
            if not turns or turns[-1] != name:
                turns.append(name)
            await asyncio.sleep(0.001)
            permit.release()

    tasks = [asyncio.create_task(hammer(name)) for name in names for _ in range(3)]
    await eventually(lambda: len(turns) >= 16)
    running = False
    await asyncio.gather(*tasks)
    rounds = turns[: 4 * (len(turns) // 4)]
    for start in range(len(rounds) - 4):
        window = rounds[start : start + 4]
        assert len(set(window)) == 4, f"{window} of {turns}"
    await world.close()


# --- replicas ---------------------------------------------------------------------------------------------------------


async def test_replicas_share_a_queue_and_the_least_loaded_one_answers(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.apply(a={"replicas": 2, "variant": "q4", "max_concurrency": 2, "warm": True})
    assert len(world.driver.alive) == 2
    permits = [await world.host.acquire("a", "standard") for _ in range(4)]
    assert Counter(permit.endpoint.port for permit in permits) == {
        process.endpoint.port: 2 for process in world.driver.alive
    }
    fifth = asyncio.create_task(world.host.acquire("a", "standard"))
    await asyncio.sleep(0.01)
    rows = [row for row in world.host.status() if row.deployment == "a"]
    assert [(row.replica, row.active_requests, row.queued_requests) for row in rows] == [(0, 2, 1), (1, 2, 1)]
    permits.pop().release()
    (await fifth).release()
    for permit in permits:
        permit.release()
    await world.close()


async def test_one_replica_crashes_and_the_other_serves_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.apply(a={"replicas": 2, "variant": "q4", "warm": True})
    held = [await world.host.acquire("a", "standard") for _ in range(2)]
    waiting = asyncio.create_task(world.host.acquire("a", "standard"))
    await asyncio.sleep(0.01)
    world.driver.alive[0].die()
    await asyncio.sleep(0.01)
    for permit in held:
        permit.release()
    (await waiting).release()
    await eventually(lambda: len(world.driver.alive) == 2)
    await world.close()


async def test_a_replica_that_does_not_fit_leaves_the_other_serving(tmp_path: Path) -> None:
    world = World(tmp_path, memory=2 * ONE)
    await world.apply(a={"replicas": 2, "variant": "q4"})
    world.devices.cpu = type(world.devices.cpu)(-1, "cpu", "system memory", ONE, ONE)
    (await world.host.acquire("a", "standard")).release()
    await eventually(lambda: {row.state for row in world.host.status()} == {"ready", "failed"})
    failed = next(row for row in world.host.status() if row.state == "failed")
    assert failed.reason_code == "insufficient_capacity"
    (await world.host.acquire("a", "standard")).release()
    await world.close()


async def test_more_replicas_than_memory_are_refused_before_anything_starts(small: World) -> None:
    with pytest.raises(InsufficientMemory):
        await small.apply(a={"replicas": 2, "variant": "q4", "warm": True})
    assert small.driver.processes == []
    await small.close()


async def test_keep_alive_counts_for_all_replicas_together(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.apply(a={"replicas": 2, "variant": "q4", "warm": True, "keep_alive_secs": 0})
    first, second = [await world.host.acquire("a", "standard") for _ in range(2)]
    first.release()
    await asyncio.sleep(0.01)
    assert len(world.driver.alive) == 2
    second.release()
    await eventually(lambda: world.driver.alive == [])
    await world.close()


async def test_a_rolling_replacement_takes_the_queue_over_in_its_order(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.apply(a={"warm": True})
    held = await world.host.acquire("a", "standard")
    order: list[int] = []

    async def ask(number: int) -> None:
        permit = await world.host.acquire("a", "standard")
        order.append(number)
        assert permit.generation == 2
        permit.release()

    waiting = [asyncio.create_task(ask(number)) for number in range(5)]
    await asyncio.sleep(0.01)
    await world.apply(a={"warm": True, "max_context": 64})
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]
    held.release()
    await world.close()


@pytest.mark.parametrize("seed", range(8))
async def test_a_crowd_settles_and_loses_nobody(tmp_path: Path, seed: int) -> None:
    """Random arrivals, departures, crashes, stops and evictions over replicas: every caller gets a permit or a typed
    refusal, no engine runs over its cap, and nothing is left behind."""
    chance = random.Random(seed)
    world = World(tmp_path, memory=ONE * 2)
    shapes = {
        f"d{n}": {"max_concurrency": 2, "replicas": 1 + n % 2, "variant": "q4", "queue_timeout_ms": 300}
        for n in range(4)
    }
    await world.apply(**shapes)
    active: Counter[int] = Counter()
    outcomes: Counter[str] = Counter()

    async def ask() -> None:
        name = chance.choice(list(shapes))
        try:
            async with asyncio.timeout(chance.choice((0.01, 1.0))):
                permit = await world.host.acquire(name, chance.choice(("interactive", "standard", "batch")))
        except SbproxyError as refused:
            outcomes[type(refused).__name__] += 1
            return
        except TimeoutError:
            outcomes["left"] += 1
            return
        port = permit.endpoint.port
        active[port] += 1
        assert active[port] <= 2
        await asyncio.sleep(chance.random() * 0.01)
        active[port] -= 1
        permit.release()
        outcomes["served"] += 1

    async def disturb() -> None:
        name = chance.choice(list(shapes))
        deed = chance.random()
        if deed < 0.5 and world.driver.alive:
            chance.choice(world.driver.alive).die()
        elif deed < 0.8:
            await world.host.stop(name)
        else:
            await world.host.load(name)

    async def later(work: object) -> None:
        await asyncio.sleep(chance.random() * 0.6)
        try:
            await work()  # type: ignore[operator]
        except SbproxyError:
            return

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(later(disturb if number % 12 == 0 else ask))
    assert outcomes["served"] > 20
    assert sum(active.values()) == 0
    await world.close()


async def test_a_replica_on_which_a_request_failed_is_spared_until_it_proves_its_health(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.apply(a={"replicas": 2, "variant": "q4", "warm": True})
    failed = await world.host.acquire("a", "standard")
    world.driver.alive[0].answers = False
    failed.engine_failed("connection refused")
    failed.release()
    again = await world.host.acquire("a", "standard")
    assert again.endpoint.port != failed.endpoint.port
    again.release()
    world.driver.alive[0].answers = True
    trusted: set[int] = set()

    def both() -> bool:
        permit = world.host.try_acquire("a")
        if permit is not None:
            trusted.add(permit.endpoint.port)
            permit.release()
        return len(trusted) == 2

    await eventually(both)
    await world.host.stop("a")
    await world.close()
