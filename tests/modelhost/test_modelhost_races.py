"""Stops, loads, reloads and crashes that meet each other at every turn of the event loop."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sbproxy.engines.core.model import ExitKind
from sbproxy.errors.engines import EngineLaunchFailed
from sbproxy.errors.modelhost import AdmissionRejected
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.lifecycle import RestartPolicy
from sbproxy.modelhost.job_desk import JobDesk
from support.model_host_parts import QUICK, MemoryJobs, ScriptedProcess, World, eventually, host_config

TURNS = range(0, 40, 1)
SLOW_RESTART = RestartPolicy(first_ms=60_000, longest_ms=60_000, limit=5, stable_after_ms=50)


def defects(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.exc_info]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_stop_at_any_turn_of_a_start_ends_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.apply(chat={})
    for count in TURNS:
        asked = asyncio.create_task(world.host.acquire("chat", "standard"))
        await turns(count)
        await world.host._roster.deployments["chat"].stop("operator")
        assert world.row("chat")["state"] in ("stopped", "configured")
        assert world.driver.alive == []
        if not asked.done():
            # The stop came before the request did.
            (await asked).release()
        elif asked.exception() is None:
            asked.result().release()
        await world.host._roster.deployments["chat"].stop("operator")
    assert defects(caplog) == []


@pytest.mark.parametrize("event", ["hang", "crash"])
async def test_a_stop_around_the_end_of_an_engine_leaves_nothing(
    world: World, caplog: pytest.LogCaptureFixture, event: str
) -> None:
    await world.apply(chat={})
    target = world.host._roster.deployments["chat"]
    for count in range(0, 24, 2):
        (await world.host.acquire("chat", "standard")).release()
        engine = world.driver.alive[0]
        if event == "hang":
            engine.answers = False
            await eventually(lambda: engine.probes >= 3)  # noqa: B023 - called in this round
        else:
            engine.die()
        await turns(count)
        await target.stop("operator")
        assert not target.replicas[0].machine.restart_pending
        assert world.driver.alive == []
        target.reset()
    assert defects(caplog) == []


async def test_a_load_that_a_reload_overtakes_starts_no_engine_that_nobody_stops(world: World) -> None:
    await world.apply(chat={})
    retired = world.host._roster.deployments["chat"]
    await world.apply(chat={"max_context": 64})
    await eventually(lambda: len(world.host.status()) == 1)
    with pytest.raises(AdmissionRejected, match="draining"):
        await retired.start("load")
    assert world.driver.processes == []


async def test_a_reset_during_a_backoff_leaves_no_caller_behind(tmp_path: Path) -> None:
    world = World(tmp_path, timings=replace(QUICK, restarts=SLOW_RESTART))
    await world.apply(chat={"warm": True})
    world.driver.alive[0].die()
    await world.until("chat", "failed")
    asked = asyncio.create_task(world.host.acquire("chat", "standard"))
    load = await world.host.load("chat")
    await turns(5)
    assert not asked.done()
    outcome = await world.host.reset("chat")
    assert outcome.state == "assigned"
    (await asked).release()
    await eventually(lambda: world.host.jobs.unfinished == 0)
    assert (await world.host.jobs.get(load)).state == "ready"
    await world.close()


async def test_a_recreate_that_is_cancelled_while_the_old_one_drains_restores_it(world: World) -> None:
    recreate: dict[str, object] = {"warm": True, "rollout": "recreate"}
    await world.apply(chat=recreate)
    permit = await world.host.acquire("chat", "standard")
    prepared = await world.host.prepare(world.catalog, host_config(chat=recreate | {"max_context": 64}))
    commit = asyncio.create_task(prepared.commit())
    old = world.host._roster.deployments["chat"]
    await eventually(lambda: old.replicas[0].machine.state == "draining")
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert old.replicas[0].machine.state == "draining"
    permit.release()
    await world.until("chat", "ready")
    assert (world.row("chat")["generation"], world.row("chat")["state"]) == (1, "ready")
    (await world.host.acquire("chat", "standard")).release()


async def test_a_failed_recreate_does_not_restart_what_an_operator_was_stopping(world: World) -> None:
    recreate: dict[str, object] = {"warm": True, "rollout": "recreate"}
    await world.apply(chat=recreate)
    permit = await world.host.acquire("chat", "standard")
    await world.host.stop("chat")
    await world.until("chat", "draining")
    prepared = await world.host.prepare(world.catalog, host_config(chat=recreate | {"max_context": 64}))
    world.driver.script.append(ExitKind.BAD_FILE)
    commit = asyncio.create_task(prepared.commit())
    await turns(3)
    permit.release()
    with pytest.raises(EngineLaunchFailed):
        await commit
    assert (world.row("chat")["generation"], world.row("chat")["state"]) == (1, "stopped")
    assert world.row("chat")["stop_cause"] == "operator"


async def test_a_job_whose_opener_leaves_is_not_left_open() -> None:
    desk = JobDesk(MemoryJobs(), lambda: 1.0)
    opening = asyncio.create_task(desk.open("load", "chat"))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert desk.unfinished == 0
    assert [(job.state, job.error_code) for job in await desk.list()] == [("failed", "cancelled")]
    await desk.close()


async def test_everything_at_once_leaves_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.apply(chat={"max_concurrency": 2})

    async def ask() -> None:
        async with asyncio.timeout(0.3):
            permit = await world.host.acquire("chat", "standard")
        await asyncio.sleep(0.001)
        permit.engine_failed("made up")
        permit.release()

    async def crash() -> None:
        if world.driver.alive:
            world.driver.alive[0].die()

    async def hang() -> None:
        if world.driver.alive:
            world.driver.alive[0].answers = False

    async def stop() -> None:
        await world.host.stop("chat")

    async def load() -> None:
        await world.host.load("chat")

    async def reset() -> None:
        await world.host.reset("chat")

    contexts = iter(range(64, 1024))

    async def reload() -> None:
        await world.apply(chat={"max_concurrency": 2, "max_context": next(contexts)})

    async def quietly(work: Callable[[], Awaitable[None]], after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            await work()
        except (SbproxyError, TimeoutError):
            return

    deeds = (ask, crash, ask, stop, load, ask, reload, hang, reset, ask)
    async with asyncio.TaskGroup() as group:
        for number in range(400):
            group.create_task(quietly(deeds[number * 7 % len(deeds)], (number * 37 % 100) / 100))
    assert defects(caplog) == []
    for engine in world.driver.alive:
        engine.answers = True


@pytest.mark.parametrize("seed", range(6))
async def test_a_storm_settles_and_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    """Loads, stops, reloads that are cancelled or fail, crashes, callers that leave, and a keep-alive of 0."""
    chance = random.Random(seed)
    world = World(tmp_path)
    shape: dict[str, object] = {"max_concurrency": 2, "keep_alive_secs": 0, "queue_timeout_ms": 200}
    await world.apply(chat=shape)
    contexts = itertools.count(64)

    async def ask() -> None:
        async with asyncio.timeout(chance.choice((0.002, 0.3))):
            permit = await world.host.acquire("chat", "standard")
        await asyncio.sleep(chance.random() * 0.004)
        if chance.random() < 0.1:
            permit.engine_failed("made up")
        permit.release()

    async def crash() -> None:
        if world.driver.alive:
            world.driver.alive[0].die(chance.choice((ExitKind.CRASH, ExitKind.SIGNAL, ExitKind.OUT_OF_MEMORY)))

    async def fail() -> None:
        if len(world.driver.script) < 2:
            world.driver.script.append(chance.choice((ExitKind.CRASH, ExitKind.BAD_FILE)))

    async def reload() -> None:
        config = shape | {"max_context": next(contexts), "rollout": chance.choice(("rolling", "recreate"))}
        named = {} if chance.random() < 0.1 else {"chat": config}
        prepared = await world.host.prepare(world.catalog, host_config(**named))
        commit = asyncio.create_task(prepared.commit())
        if chance.random() < 0.5:
            await asyncio.sleep(chance.random() * 0.004)
            commit.cancel()
        await asyncio.wait((commit,))
        if not commit.cancelled():
            commit.result()

    deeds: list[Callable[[], Awaitable[object]]] = [
        *(ask, ask, ask, ask, crash, fail, reload, reload),
        *(lambda: world.host.load("chat"), lambda: world.host.stop("chat"), lambda: world.host.reset("chat")),
    ]

    async def quietly() -> None:
        await asyncio.sleep(chance.random() * 0.5)
        try:
            await chance.choice(deeds)()
        except (SbproxyError, TimeoutError):
            return

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for _ in range(250):
            group.create_task(quietly())
    assert defects(caplog) == []
    # A commit that was cancelled may still bring its old generation back.
    await eventually(lambda: not world.host._changing.locked())
    assert world.host._roster.staged == {}
    world.driver.script.clear()
    await world.apply()
    await world.apply(chat=shape | {"max_context": next(contexts)})
    (await world.host.acquire("chat", "standard")).release()
    await world.close()


@pytest.mark.parametrize("kind", [RuntimeError, OSError, KeyError])
@pytest.mark.parametrize("where", ["state", "lease", "launch", "stop"])
async def test_a_defect_anywhere_in_a_run_wedges_nothing(world: World, kind: type[Exception], where: str) -> None:
    await world.apply(chat={})

    def broken(*_: object, **__: object) -> None:
        raise kind("made up")

    target = world.host._roster.deployments["chat"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*{
            "state": (world.store, "state"),
            "lease": (world.store, "lease"),
            "launch": (world.driver, "launch"),
            "stop": (ScriptedProcess, "stop"),
        }[where], broken)  # fmt: skip
        if where == "stop":
            (await world.host.acquire("chat", "standard")).release()
        else:
            with pytest.raises(SbproxyError):
                await world.host.acquire("chat", "standard")
        async with asyncio.timeout(1):
            await target.stop("operator")
    assert target.replicas[0].machine.state in ("stopped", "failed")
    for engine in world.driver.alive:
        engine.die()
