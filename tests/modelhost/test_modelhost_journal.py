"""Which jobs and log lines a generation leaves: one job a transition, and the cause of every move."""

from __future__ import annotations

import asyncio
import logging

import pytest

from sbproxy.engines.core.model import ExitKind
from sbproxy.errors.artifacts import TransportFailed
from sbproxy.errors.engines import EngineLaunchFailed
from sbproxy.errors.modelhost import AdmissionRejected
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.jobs import StopKind
from support.model_host_parts import World, eventually, host_config


async def jobs(world: World) -> list[tuple[str, str, str | None]]:
    """(kind, state, error code) of every job about the deployment, oldest first, once they are written."""
    return [(job.kind, job.state, job.error_code) for job in await world.host.jobs.list() if job.subject == "chat"]


async def test_a_cold_start_is_one_launch_job_however_many_ask(world: World) -> None:
    await world.apply(chat={"max_concurrency": 4})
    world.driver.script.append("slow")
    asked = [asyncio.create_task(world.host.acquire("chat", "standard")) for _ in range(4)]
    await eventually(lambda: bool(world.driver.processes))
    assert await jobs(world) == [("launch", "running", None)]
    [job] = [job for job in await world.host.jobs.list() if job.kind == "launch"]
    assert world.row("chat")["job_id"] == job.id
    world.driver.processes[0].started.set()
    for task in asked:
        (await task).release()
    assert await jobs(world) == [("launch", "ready", None)]
    (await world.host.acquire("chat", "standard")).release()
    assert await jobs(world) == [("launch", "ready", None)]


async def test_a_warm_start_and_a_reload_leave_launch_and_drain_jobs(world: World) -> None:
    await world.apply(chat={"warm": True})
    assert await jobs(world) == [("launch", "ready", None)]
    await world.apply(chat={"warm": True, "max_context": 64})
    await eventually(lambda: len(world.host.status()) == 1)
    assert await jobs(world) == [("launch", "ready", None), ("launch", "ready", None), ("drain", "ready", None)]


async def test_a_crash_restart_is_a_launch_job_of_its_own(world: World) -> None:
    await world.apply(chat={"warm": True})
    first = world.row("chat")["job_id"]
    world.driver.alive[0].die(ExitKind.SIGNAL)
    await world.until("chat", "failed")
    await world.until("chat", "ready")
    assert await jobs(world) == [("launch", "ready", None)] * 2
    assert world.row("chat")["job_id"] not in (None, first)


async def test_a_load_is_one_job_and_not_two(world: World) -> None:
    await world.apply(chat={})
    job = await world.host.load("chat")
    await world.until("chat", "ready")
    assert world.row("chat")["job_id"] == job
    await eventually(lambda: world.host.jobs.unfinished == 0)
    assert await jobs(world) == [("load", "ready", None)]


async def test_a_load_that_joins_a_start_tells_its_own_end(world: World) -> None:
    await world.apply(chat={})
    world.driver.script.append("slow")
    asked = asyncio.create_task(world.host.acquire("chat", "standard"))
    await eventually(lambda: bool(world.driver.processes))
    await world.host.load("chat")
    world.driver.processes[0].started.set()
    (await asked).release()
    await eventually(lambda: world.host.jobs.unfinished == 0)
    assert await jobs(world) == [("launch", "ready", None), ("load", "ready", None)]


@pytest.mark.parametrize(
    ("exit_kind", "code"), [(ExitKind.BAD_FILE, "engine_unhealthy"), (None, "transport_failed")], ids=["engine", "pull"]
)
async def test_a_start_that_fails_says_so_with_the_reason_of_the_row(
    world: World, exit_kind: ExitKind | None, code: str
) -> None:
    await world.apply(chat={})
    if exit_kind is None:
        world.store.failures.append(TransportFailed("hub", "reset"))
    else:
        world.driver.script.append(exit_kind)
    expected: type[SbproxyError] = TransportFailed if exit_kind is None else EngineLaunchFailed
    with pytest.raises(expected):
        await world.host.acquire("chat", "standard")
    assert await jobs(world) == [("launch", "failed", code)]
    job = await world.host.jobs.get(world.row("chat")["job_id"])  # type: ignore[arg-type]
    assert job.error == f"launch failed ({code}); inspect server logs"
    assert world.row("chat")["reason_code"] == code


async def test_a_crash_loop_ends_its_last_launch_job_with_that_reason(world: World) -> None:
    await world.apply(chat={})
    world.driver.script.extend([ExitKind.CRASH] * 4)
    with pytest.raises(EngineLaunchFailed):
        await world.host.acquire("chat", "standard")
    await eventually(lambda: world.row("chat")["reason_code"] == "crash_loop")
    assert await jobs(world) == [("launch", "failed", "engine_unhealthy")] * 3 + [("launch", "failed", "crash_loop")]


async def test_a_start_that_is_given_up_is_a_failed_launch_and_no_drain(world: World) -> None:
    await world.apply(chat={})
    world.driver.script.append("slow")
    asked = asyncio.create_task(world.host.acquire("chat", "standard"))
    await eventually(lambda: bool(world.driver.processes))
    await world.host.stop("chat")
    with pytest.raises(AdmissionRejected):
        await asked
    await eventually(lambda: world.host.jobs.unfinished == 0)
    assert await jobs(world) == [("launch", "failed", "draining"), ("stop", "ready", None)]


async def test_an_unload_for_idleness_is_a_drain_job(world: World) -> None:
    await world.apply(chat={"keep_alive_secs": 0})
    (await world.host.acquire("chat", "standard")).release()
    await world.until("chat", "stopped")
    assert await jobs(world) == [("launch", "ready", None), ("drain", "ready", None)]


@pytest.mark.parametrize("kind", ["stop", "drain"])
async def test_an_operators_stop_is_one_job_of_the_kind_that_was_asked_for(world: World, kind: StopKind) -> None:
    await world.apply(chat={"warm": True})
    job = await world.host.stop("chat", kind)
    await world.until("chat", "stopped")
    await eventually(lambda: world.host.jobs.unfinished == 0)
    assert await jobs(world) == [("launch", "ready", None), (kind, "ready", None)]
    assert world.row("chat")["job_id"] == job


async def test_a_drain_that_cuts_answers_says_so_in_job_and_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.apply(chat={"warm": True, "max_concurrency": 2})
    permits = [await world.host.acquire("chat", "standard") for _ in range(2)]
    queued = asyncio.create_task(world.host.acquire("chat", "standard"))
    await asyncio.sleep(0)
    with caplog.at_level(logging.INFO, "sbproxy.modelhost"):
        first, second = await world.host.stop("chat"), await world.host.stop("chat")
        with pytest.raises(AdmissionRejected):
            await queued
        permits[0].release()
        await eventually(lambda: world.host.jobs.unfinished == 0)
    for job in (first, second):
        record = await world.host.jobs.get(job)
        assert (record.state, record.error, record.note) == (
            "ready",
            None,
            "1 of 2 active requests were cut: the drain deadline passed",
        )
    told = [line for line in caplog.messages if "active_at_start" in line]
    report = "active_at_start=2 cancelled_queued=1 remaining_active=1 timed_out=true"
    assert told == [f"chat generation 1 replica 0 drained cause=operator {report}"]
    permits[1].release()


async def test_a_clean_drain_is_told_too(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.apply(chat={"warm": True})
    with caplog.at_level(logging.INFO, "sbproxy.modelhost"):
        await world.apply()
        await eventually(lambda: world.host.status() == [])
    report = "active_at_start=0 cancelled_queued=0 remaining_active=0 timed_out=false"
    assert f"chat generation 1 replica 0 drained cause=reload {report}" in caplog.messages


async def test_every_move_names_its_cause(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sbproxy.modelhost"):
        await world.apply(chat={"keep_alive_secs": 1})
        (await world.host.acquire("chat", "standard")).release()
        await world.until("chat", "stopped")
        await world.host.load("chat")
        await world.until("chat", "ready")
        world.driver.alive[0].die()
        await world.until("chat", "failed")
        await world.until("chat", "ready")
    moves = [line.removeprefix("chat generation 1 replica 0: ") for line in caplog.messages if " -> " in line]
    start = ["assigned -> preparing cause=artifact_verified", "preparing -> ready cause=engine_ready"]
    assert moves == [
        "configured -> assigned cause=request", *start,
        "ready -> draining cause=keep_alive", "draining -> stopped cause=engine_stopped",
        "stopped -> assigned cause=load", *start,
        "ready -> failed cause=crash", "failed -> assigned cause=restart", *start,
    ]  # fmt: skip


async def test_a_rolled_back_reload_leaves_no_open_job(world: World) -> None:
    await world.apply(chat={"warm": True, "rollout": "recreate"})
    world.driver.script.append(ExitKind.OUT_OF_MEMORY)
    change = {"warm": True, "rollout": "recreate", "max_context": 64}
    prepared = await world.host.prepare(world.catalog, host_config(chat=change))
    with pytest.raises(EngineLaunchFailed):
        await prepared.commit()
    assert await jobs(world) == [
        ("launch", "ready", None), ("drain", "ready", None), ("launch", "failed", "engine_unhealthy"),
        ("launch", "ready", None),
    ]  # fmt: skip


async def test_close_leaves_no_open_job_and_no_job_of_its_own(world: World) -> None:
    await world.apply(chat={"warm": True}, cold={"model": "two"})
    world.driver.script.append("slow")
    asked = asyncio.create_task(world.host.acquire("cold", "standard"))
    await eventually(lambda: len(world.driver.processes) == 2)
    await world.host.close()
    with pytest.raises(AdmissionRejected):
        await asked
    kinds = [(job.kind, job.subject, job.state) for job in world.jobs.jobs() if job.kind != "pull"]
    assert kinds == [("launch", "chat", "ready"), ("launch", "cold", "failed")]
