"""A ready engine that stops answering: one missed health check changes nothing, several in a row end it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sbproxy.engines.core.model import ExitKind, ExitVerdict
from sbproxy.errors.engines import EngineStopFailed
from sbproxy.errors.modelhost import AdmissionRejected
from sbproxy.modelhost.core.health import HealthPolicy
from sbproxy.modelhost.services import Timings
from support.model_host_parts import QUICK, ScriptedProcess, World, eventually

PATIENT = HealthPolicy(period_s=60, retry_s=0.01, timeout_s=0.1, misses=3)
"""Asks only after a suspicion."""


def test_the_documented_numbers() -> None:
    policy = Timings().health
    assert (policy.period_s, policy.retry_s, policy.timeout_s, policy.misses) == (10, 1, 5, 3)


def test_a_hung_engine_is_worth_another_try() -> None:
    assert ExitVerdict(ExitKind.UNRESPONSIVE, None, "x").worth_retry
    assert not ExitVerdict(ExitKind.BAD_FILE, 1, "x").worth_retry


async def test_a_hung_engine_fails_and_is_replaced(world: World) -> None:
    await world.apply(chat={"warm": True, "max_concurrency": 1})
    permit = await world.host.acquire("chat", "standard")
    waiting = asyncio.create_task(world.host.acquire("chat", "standard"))
    first = world.driver.alive[0]
    first.answers = False
    with pytest.raises(AdmissionRejected) as refused:
        await waiting
    assert refused.value.reason == "engine_unhealthy"
    assert "no answer to 3 health checks in a row" in str(refused.value)
    await world.until("chat", "ready")
    assert (first.stops, first.probes >= 3) == (1, True)
    assert world.driver.alive[0] is not first
    assert world.row("chat")["active_requests"] == 0
    permit.engine_failed("too late to matter")
    permit.release()
    assert world.row("chat")["active_requests"] == 0


async def test_while_it_restarts_the_row_says_why(world: World) -> None:
    await world.apply(chat={"warm": True})
    world.driver.script.append("slow")
    world.driver.alive[0].answers = False
    await world.until("chat", "preparing")
    assert world.row("chat")["stop_cause"] == "unresponsive"
    await eventually(lambda: len(world.driver.processes) == 2)
    world.driver.processes[1].started.set()
    await world.until("chat", "ready")
    assert world.row("chat")["stop_cause"] is None


async def test_single_missed_checks_kill_nobody(world: World) -> None:
    await world.apply(chat={"warm": True})
    engine = world.driver.alive[0]

    async def next_probe(answers: bool) -> None:
        engine.answers = answers
        seen = engine.probes
        await eventually(lambda: engine.probes > seen)

    for _ in range(4):
        await next_probe(answers=False)
        await next_probe(answers=False)
        await next_probe(answers=True)
    assert world.row("chat")["state"] == "ready"
    assert len(world.driver.processes) == 1


async def test_a_failed_request_has_the_engine_asked_soon(tmp_path: Path) -> None:
    world = World(tmp_path, timings=Timings(2.0, 0.2, QUICK.restarts, PATIENT))
    await world.apply(chat={"warm": True})
    engine = world.driver.alive[0]
    permit = await world.host.acquire("chat", "standard")
    await asyncio.sleep(0.05)
    assert engine.probes == 0
    for _ in range(50):
        permit.engine_failed("timed out")
    await eventually(lambda: engine.probes == 1)
    await asyncio.sleep(0.05)
    assert engine.probes == 1
    assert world.row("chat")["state"] == "ready"
    engine.answers = False
    permit.engine_failed("timed out again")
    await eventually(lambda: world.row("chat")["pid"] != engine.pid)
    assert engine.probes == 4
    permit.release()
    await world.until("chat", "ready")
    await world.close()


async def stuck(world: World) -> ScriptedProcess:
    """A warm engine that hangs and survives SIGKILL."""
    await world.apply(chat={"warm": True})
    engine = world.driver.alive[0]
    engine.stop_failure = EngineStopFailed("llama_cpp", engine.pid, 5)
    engine.answers = False
    await eventually(lambda: world.row("chat")["reason_code"] == "engine_stop_failed")
    return engine


async def test_a_hung_engine_that_cannot_be_ended_keeps_its_memory_and_lets_nobody_in(world: World) -> None:
    engine = await stuck(world)
    row = world.row("chat")
    assert (row["state"], row["pid"]) == ("draining", engine.pid)
    assert row["memory"] is not None
    assert world.host.try_acquire("chat") is None
    with pytest.raises(AdmissionRejected) as refused:
        await world.host.acquire("chat", "standard")
    assert refused.value.reason == "engine_unhealthy"
    assert len(world.driver.processes) == 1
    engine.die(ExitKind.SIGNAL)
    await world.until("chat", "ready")
    assert len(world.driver.processes) == 2


async def test_a_stop_of_a_hung_engine_starts_no_other(world: World) -> None:
    engine = await stuck(world)
    job = await world.host.stop("chat")
    await asyncio.sleep(0.01)
    engine.die(ExitKind.SIGNAL)
    await world.until("chat", "stopped")
    await asyncio.sleep(0.05)
    assert len(world.driver.processes) == 1
    assert world.row("chat")["stop_cause"] == "operator"
    await eventually(lambda: world.host.jobs.unfinished == 0)
    assert (await world.host.jobs.get(job)).state == "ready"


async def test_an_engine_that_hangs_while_it_drains_ends_the_drain(world: World) -> None:
    await world.apply(chat={"warm": True})
    permit = await world.host.acquire("chat", "standard")
    job = await world.host.stop("chat")
    await world.until("chat", "draining")
    world.driver.alive[0].answers = False
    await eventually(lambda: world.host.jobs.unfinished == 0)
    assert (await world.host.jobs.get(job)).note == "1 of 1 active requests were cut: the engine ended before they did"
    permit.release()
