"""Waiting for room: it is bounded, nobody displaces others in vain, and what a driver does not know yet is counted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sbproxy.devices.core.model import Device, Machine
from sbproxy.engines.core.model import ExitKind
from sbproxy.errors.modelhost import AdmissionRejected, InsufficientMemory
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.lifecycle import RestartPolicy
from support.model_host_parts import MIB, QUICK, World, eventually, host_config

ONE = 160 * MIB
"""Room for one of the made-up models, whose estimate is about 133 MiB, and not for two."""
TWINS: dict[str, object] = {"replicas": 2, "variant": "q4"}


@pytest.fixture
async def small(tmp_path: Path) -> World:
    return World(tmp_path, memory=ONE)


async def used(world: World, deployment: str) -> None:
    (await world.host.acquire(deployment, "standard")).release()


def state(world: World, deployment: str) -> object:
    return world.row(deployment)["state"]


def states(world: World, deployment: str) -> list[str]:
    return [row.state for row in world.host.status() if row.deployment == deployment]


def waits(world: World, deployment: str) -> bool:
    rows = [row for row in world.host.status() if row.deployment == deployment]
    return any(row.state == "preparing" and row.reason_code == "insufficient_capacity" for row in rows)


class Memory:
    """A DeviceInventory that measures what the scripted engines really hold: 130 MiB each once they are ready.

    ``foreign`` is another program's; memory of an engine that ended comes back after ``lag_s``.
    """

    def __init__(self, world: World, total: int, *, foreign: int = 0, lag_s: float = 0) -> None:
        self.world, self.total, self.foreign, self.lag_s = world, total, foreign, lag_s
        self.broken = False
        self.ended: dict[int, float] = {}

    def probe(self) -> Machine:
        if self.broken:
            raise OSError("made up")
        now = time.monotonic()
        held = 0
        for process in self.world.driver.processes:
            if process.exited.done():
                self.ended.setdefault(process.pid, now)
                held += process.started.is_set() and now - self.ended[process.pid] < self.lag_s
            else:
                held += process.started.is_set()
        free = max(0, self.total - self.foreign - held * 130 * MIB)
        return Machine("linux", "x86_64", 2, (Device(-1, "cpu", "system memory", self.total, free),))


def measured(world: World, total: int, *, foreign: int = 0, lag_s: float = 0) -> Memory:
    made = Memory(world, total, foreign=foreign, lag_s=lag_s)
    world.host._roster.services.devices.probe = made.probe  # type: ignore[method-assign]
    return made


# --- bounded, and nobody is displaced in vain -------------------------------------------------------------------------


async def test_a_load_that_waits_for_room_ends_with_what_holds_it(tmp_path: Path) -> None:
    world = World(tmp_path, memory=ONE, timings=replace(QUICK, readiness_s=0.2))
    await world.apply(a={"queue_timeout_ms": 100}, b={"queue_timeout_ms": 100})
    permit = await world.host.acquire("a", "standard")
    with pytest.raises(InsufficientMemory, match="held by a \\(132 MiB\\)") as refused:
        await world.host._roster.deployments["b"].start("load")
    assert "no room within 0.2 s, 1 of 1 that wait for it" in str(refused.value)
    assert refused.value.retry_after_ms == 100
    assert state(world, "b") == "failed"
    parked = asyncio.create_task(world.host.acquire("a", "standard"))
    permit.release()
    (await parked).release()
    await world.close()


async def test_replicas_that_wait_for_each_others_room_wedge_nobody(tmp_path: Path) -> None:
    """Room for two; each deployment has one engine and waits for a second."""
    world = World(tmp_path, memory=2 * ONE)
    await world.apply(a=TWINS, b={"variant": "q4"}, c={"variant": "q4"})
    await used(world, "b")
    held = await world.host.acquire("b", "standard")
    await used(world, "a")
    assert sorted(states(world, "a")) == ["preparing", "ready"]
    # The second engine of a makes nobody wait.
    more = asyncio.create_task(world.host.acquire("b", "standard"))
    await asyncio.sleep(0.02)
    held.release()
    async with asyncio.timeout(1):
        (await more).release()
    await eventually(lambda: states(world, "a") == ["ready", "ready"])
    assert state(world, "b") == "stopped"
    await used(world, "b")
    await world.close()


async def test_two_deployments_of_two_replicas_on_room_for_two_go_on_serving(tmp_path: Path) -> None:
    world = World(tmp_path, memory=2 * ONE)
    await world.apply(a=TWINS | {"max_concurrency": 1}, b=TWINS | {"max_concurrency": 1})
    served: Counter[str] = Counter()

    async def caller(name: str) -> None:
        for _ in range(15):
            permit = await world.host.acquire(name, "standard")
            await asyncio.sleep(0.001)
            permit.release()
            served[name] += 1

    async with asyncio.timeout(20):
        await asyncio.gather(*(caller(name) for name in "ab" for _ in range(3)))
    assert served == {"a": 45, "b": 45}
    await world.close()


async def test_two_loads_of_two_replicas_on_room_for_two_both_end(tmp_path: Path) -> None:
    world = World(tmp_path, memory=2 * ONE)
    await world.apply(a=TWINS, b=TWINS)
    a, b = (world.host._roster.deployments[name] for name in "ab")
    world.driver.script.extend(["ready", "ready"])
    async with asyncio.timeout(2):
        await asyncio.gather(a.start("load"), b.start("load"))
    await world.close()


async def test_a_start_that_nobody_waits_for_any_more_displaces_nobody(small: World) -> None:
    """The caller leaves before there was a claim, while the artifact is fetched."""
    await small.apply(a={}, b={"model": "two"})
    await used(small, "a")
    small.store.gate.clear()
    left = asyncio.create_task(small.host.acquire("b", "standard"))
    await small.until("b", "assigned")
    left.cancel()
    await asyncio.sleep(0.01)
    small.store.gate.set()
    await small.until("b", "stopped")
    assert small.row("b")["stop_cause"] == "abandoned"
    assert state(small, "a") == "ready"
    assert small.metrics.seen["evicted", "capacity"] == 0
    await small.close()


@pytest.mark.parametrize("pinned", [False, True])
async def test_a_crash_restart_displaces_others_only_for_the_pinned(tmp_path: Path, pinned: bool) -> None:
    restarts = RestartPolicy(first_ms=60, longest_ms=60, limit=5, stable_after_ms=50)
    world = World(tmp_path, memory=ONE, timings=replace(QUICK, restarts=restarts))
    await world.apply(a={"pinned": pinned}, b={})
    await used(world, "a")
    world.driver.alive[0].die()
    await world.until("a", "failed")
    await used(world, "b")
    await eventually(lambda: state(world, "a") == ("ready" if pinned else "stopped"))
    assert state(world, "b") == ("stopped" if pinned else "ready")
    await world.close()


async def test_an_old_generation_that_drains_is_waited_for_by_the_next(small: World) -> None:
    await small.apply(a={})
    permit = await small.host.acquire("a", "standard")
    await small.apply()
    await small.apply(a={})
    asked = asyncio.create_task(small.host.acquire("a", "standard"))
    await eventually(lambda: waits(small, "a"))
    permit.release()
    again = await asked
    assert again.generation == 2
    again.release()
    await small.close()


async def test_a_reload_that_raises_the_count_lets_go_on_who_waits_for_it(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def limited(count: int) -> None:
        config = host_config(a={}, b={})
        config = config.model_copy(update={"cache": config.cache.model_copy(update={"max_resident_models": count})})
        await (await world.host.prepare(world.catalog, config)).commit()

    await limited(1)
    permit = await world.host.acquire("a", "standard")
    asked = asyncio.create_task(world.host.acquire("b", "standard"))
    await eventually(lambda: waits(world, "b"))
    await limited(2)
    async with asyncio.timeout(1):
        (await asked).release()
    permit.release()
    await world.close()


async def test_a_probe_that_breaks_strands_nobody(small: World, caplog: pytest.LogCaptureFixture) -> None:
    memory = measured(small, ONE)
    await small.apply(a={}, b={})
    permit = await small.host.acquire("a", "standard")
    asked = asyncio.create_task(small.host.acquire("b", "standard"))
    await eventually(lambda: waits(small, "b"))
    parked = asyncio.create_task(small.host.acquire("a", "standard"))
    await asyncio.sleep(0.01)
    memory.broken = True
    permit.release()
    with pytest.raises(SbproxyError):
        await asked
    memory.broken = False
    (await parked).release()
    assert "made up" in caplog.text
    await small.host.stop("b")
    await small.close()


# --- what the driver does not know yet --------------------------------------------------------------------------------


async def test_two_starts_at_once_do_not_count_the_same_free_memory_twice(tmp_path: Path) -> None:
    """Half of the memory is another program's, so only the driver's figure limits, and it sees an engine that is
    loaded, not one that loads."""
    world = World(tmp_path, memory=4 * ONE)
    measured(world, 4 * ONE, foreign=2 * ONE + 100 * MIB)
    await world.apply(a={}, b={})
    first, second = (asyncio.create_task(world.host.acquire(name, "standard")) for name in "ab")
    done, _ = await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.02)
    assert len(done) == 1
    assert len(world.driver.alive) == 1
    for task in (*done, *({first, second} - done)):
        (await task).release()
    await world.close()


async def test_memory_that_a_driver_gives_back_late_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, memory=ONE)
    recreate: dict[str, object] = {"warm": True, "rollout": "recreate"}
    await world.apply(a=recreate)
    measured(world, ONE, lag_s=0.3)
    await world.apply(a=recreate | {"max_context": 64})
    assert (world.row("a")["generation"], state(world, "a")) == (2, "ready")
    await world.close()


async def test_late_memory_costs_no_second_one_its_place(tmp_path: Path) -> None:
    world = World(tmp_path, memory=2 * ONE)
    measured(world, 2 * ONE, lag_s=0.3)
    await world.apply(a={}, b={}, c={})
    await used(world, "a")
    await used(world, "b")
    await used(world, "c")
    assert [state(world, name) for name in "abc"] == ["stopped", "ready", "ready"]
    await world.close()


async def test_replicas_get_cards_of_their_own_however_much_one_could_hold(tmp_path: Path) -> None:
    world = World(tmp_path)
    cards = [Device(index, "cuda", "card", 8192 * MIB, 8192 * MIB) for index in range(4)]
    world.devices.cards = tuple(cards)
    variant = world.catalog.models[next(iter(world.catalog.models))].variants[0]
    requirements = replace(variant.requirements, accelerators=("cuda",))
    models = {
        name: replace(model, variants=(replace(model.variants[0], requirements=requirements),))
        for name, model in world.catalog.models.items()
    }
    world.catalog = replace(world.catalog, models=models)
    await world.apply(a=TWINS | {"replicas": 4, "warm": True})
    chosen = [row.selected_devices for row in world.host.status()]
    assert sorted(chosen) == [(0,), (1,), (2,), (3,)]
    await world.close()


# --- patience and keep-alive ------------------------------------------------------------------------------------------


async def test_every_cold_start_has_the_patience_of_a_cold_start(world: World) -> None:
    await world.apply(chat={"queue_timeout_ms": 50, "keep_alive_secs": 0})
    await used(world, "chat")
    await world.until("chat", "stopped")
    world.driver.script.append("slow")
    asked = asyncio.create_task(world.host.acquire("chat", "standard"))
    await asyncio.sleep(0.15)
    assert not asked.done()
    world.driver.alive[0].started.set()
    (await asked).release()


async def test_a_second_replica_does_not_undo_an_operators_load(world: World) -> None:
    await world.apply(chat=TWINS | {"keep_alive_secs": 0})
    world.driver.script.extend(["ready", "slow"])
    load = asyncio.create_task(world.host._roster.deployments["chat"].start("load"))
    await eventually(lambda: len(world.driver.alive) == 2 and "ready" in states(world, "chat"))
    world.driver.alive[1].started.set()
    await load
    await asyncio.sleep(0.05)
    assert states(world, "chat") == ["ready", "ready"]
    await used(world, "chat")
    await world.until("chat", "stopped")


async def test_parked_callers_that_leave_do_not_hold_an_engine_for_ever(small: World) -> None:
    await small.apply(a={"keep_alive_secs": 0}, b={}, c={"pinned": True})
    permit = await small.host.acquire("a", "standard")
    needy = asyncio.create_task(small.host.acquire("b", "standard"))
    await eventually(lambda: waits(small, "b"))
    parked = asyncio.create_task(small.host.acquire("a", "standard"))
    await asyncio.sleep(0.01)
    needy.cancel()
    permit.release()
    parked.cancel()
    await small.until("a", "stopped")
    await small.close()


async def test_a_full_queue_tells_what_holds_the_memory(small: World) -> None:
    await small.apply(a={}, b={"max_queue_depth": 1})
    permit = await small.host.acquire("a", "standard")
    waiting = [asyncio.create_task(small.host.acquire("b", "standard")) for _ in range(2)]
    await eventually(lambda: waits(small, "b"))
    with pytest.raises(AdmissionRejected, match=r"it needs 132 MiB .* held by a") as refused:
        await small.host.acquire("b", "standard")
    assert refused.value.reason == "queue_full"
    permit.release()
    for each in waiting:
        (await each).release()
    await small.close()


async def test_a_crash_while_somebody_waits_for_its_room_gives_it_to_them(small: World) -> None:
    await small.apply(a={}, b={})
    permit = await small.host.acquire("a", "standard")
    asked = asyncio.create_task(small.host.acquire("b", "standard"))
    await eventually(lambda: waits(small, "b"))
    parked = asyncio.create_task(small.host.acquire("a", "standard"))
    await asyncio.sleep(0.01)
    small.driver.alive[0].die(ExitKind.CRASH)
    (await asked).release()
    with pytest.raises(SbproxyError):
        await parked
    permit.release()
    await used(small, "a")
    await small.close()
