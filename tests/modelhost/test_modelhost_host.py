"""The host over scripted engines: cold starts, admission, crashes, drains, keep-alive. Nothing may leak."""

from __future__ import annotations

import asyncio
import time

import pytest

from sbproxy.engines.core.model import ExitKind
from sbproxy.errors.artifacts import ManualArtifactMissing, TransportFailed
from sbproxy.errors.engines import EngineIncompatible, EngineLaunchFailed, EngineStopFailed, UnsafeArgument
from sbproxy.errors.modelhost import (
    AdmissionRejected,
    InsufficientMemory,
    NoReadyReplica,
    ResetRefused,
    UnknownDeployment,
    UnknownJob,
)
from sbproxy.modelhost.core.jobs import JobId
from sbproxy.modelhost.drain import Drain
from support.model_host_parts import MIB, World, eventually


async def ended(world: World, job_id: JobId) -> tuple[str, str | None]:
    """(state, error code) of a job once it is over."""
    await eventually(lambda: world.host.jobs.unfinished == 0)
    job = await world.host.jobs.get(job_id)
    return job.state, job.error_code


async def test_nothing_serves_before_a_commit(world: World) -> None:
    assert world.host.try_acquire("chat") is None
    assert world.host.runtime_revision == 0
    with pytest.raises(UnknownDeployment):
        await world.host.acquire("chat", "standard")


async def test_unknown_deployment_names_the_near_ones(world: World) -> None:
    await world.apply(chat={}, embed={})
    with pytest.raises(UnknownDeployment, match="did you mean chat"):
        await world.host.acquire("chatt", "standard")


async def test_cold_start_gives_a_permit_of_the_engine(world: World) -> None:
    await world.apply(chat={"max_context": 512, "max_concurrency": 2})
    assert world.host.availability("chat").state == "cold"
    assert world.host.try_acquire("chat") is None
    permit = await world.host.acquire("chat", "standard")
    [process] = world.driver.alive
    assert permit.endpoint is process.endpoint
    assert (permit.deployment, permit.generation) == ("chat", 1)
    assert (process.spec.context_tokens, process.spec.parallel) == (512, 2)
    assert world.host.availability("chat").state == "ready"
    row = world.row("chat")
    assert row["state"] == "ready"
    assert (row["active_requests"], row["pid"], row["port"]) == (1, process.pid, process.endpoint.port)
    memory = row["memory"]
    assert memory is not None
    assert memory.weight_bytes == 100 * MIB  # type: ignore[attr-defined]
    assert memory.kv_bytes == 5120 * 512 * 2  # type: ignore[attr-defined]
    permit.release()
    permit.release()
    assert world.row("chat")["active_requests"] == 0


async def test_hot_path_takes_under_two_microseconds(world: World) -> None:
    await world.apply(chat={"warm": True})
    try_acquire = world.host.try_acquire
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(2000):
            permit = try_acquire("chat")
            assert permit is not None
            permit.release()
        best = min(best, (time.perf_counter() - started) / 2000)
    assert best < 8e-6  # acquire, release and the idle mark; generous for a busy machine


async def test_many_requests_share_one_cold_start(world: World) -> None:
    await world.apply(chat={"max_concurrency": 3, "max_queue_depth": 100})
    permits = [asyncio.create_task(world.host.acquire("chat", "standard")) for _ in range(20)]
    served = 0
    async with asyncio.timeout(2):
        while served < 20:
            done = [task for task in permits if task.done()]
            assert len(done) <= 3 + served
            for task in done:
                permits.remove(task)
                task.result().release()
                served += 1
            await asyncio.sleep(0)
    assert len(world.driver.processes) == 1
    assert world.store.fetches == [("one:q4", "runtime")]


async def test_a_waiter_that_leaves_does_not_abort_the_load(world: World) -> None:
    await world.apply(chat={})
    world.driver.script.append("slow")
    leaver = asyncio.create_task(world.host.acquire("chat", "standard"))
    await world.until("chat", "preparing")
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert world.row("chat")["queued_requests"] == 0
    await eventually(lambda: bool(world.driver.processes))
    world.driver.processes[0].started.set()
    await world.until("chat", "ready")
    permit = world.host.try_acquire("chat")
    assert permit is not None
    permit.release()


async def test_a_caller_cancelled_in_the_turn_of_its_grant_gives_the_permit_back(world: World) -> None:
    await world.apply(chat={"warm": True})
    first = world.host.try_acquire("chat")
    assert first is not None
    waiting = asyncio.create_task(world.host.acquire("chat", "standard"))
    await asyncio.sleep(0)
    first.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert world.row("chat")["active_requests"] == 0
    again = world.host.try_acquire("chat")
    assert again is not None
    again.release()


async def test_interactive_goes_ahead_of_batch_and_fifo_holds_within(world: World) -> None:
    await world.apply(chat={"warm": True})
    first = await world.host.acquire("chat", "standard")
    order: list[str] = []

    async def ask(name: str, priority: str) -> None:
        permit = await world.host.acquire("chat", priority)  # type: ignore[arg-type]
        order.append(name)
        permit.release()

    asked = (("b1", "batch"), ("s1", "standard"), ("i1", "interactive"), ("s2", "standard"), ("i2", "interactive"))
    async with asyncio.TaskGroup() as group:
        for name, priority in asked:
            group.create_task(ask(name, priority))
            await asyncio.sleep(0)
        first.release()
    assert order == ["i1", "i2", "s1", "s2", "b1"]


async def test_a_full_queue_and_a_late_permit_are_refused_by_name(world: World) -> None:
    await world.apply(chat={"warm": True, "max_queue_depth": 1, "queue_timeout_ms": 30})
    permit = await world.host.acquire("chat", "standard")
    waiting = asyncio.create_task(world.host.acquire("chat", "batch"))
    await asyncio.sleep(0)
    with pytest.raises(AdmissionRejected) as full:
        await world.host.acquire("chat", "interactive")
    assert (full.value.reason, full.value.retry_after_ms, full.value.may_retry) == ("queue_full", 30, True)
    with pytest.raises(AdmissionRejected) as late:
        await waiting
    assert (late.value.reason, late.value.retry_after_ms) == ("queue_timeout", 30)
    assert world.metrics.seen["rejected", "chat", "interactive", "queue_full"] == 1
    assert world.metrics.seen["rejected", "chat", "batch", "queue_timeout"] == 1
    permit.release()


async def test_no_queue_still_wakes_a_cold_deployment(world: World) -> None:
    await world.apply(chat={"max_queue_depth": 0})
    permit = await world.host.acquire("chat", "standard")
    with pytest.raises(AdmissionRejected) as full:
        await world.host.acquire("chat", "standard")
    assert full.value.reason == "queue_full"
    permit.release()


async def test_a_slow_load_outlives_the_queue_time_out(world: World) -> None:
    await world.apply(chat={"queue_timeout_ms": 10})
    world.driver.script.append("slow")
    waiting = asyncio.create_task(world.host.acquire("chat", "standard"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    world.driver.processes[0].started.set()
    (await waiting).release()


@pytest.mark.parametrize("policy", ["reject", "fallback"])
async def test_cold_start_policies_that_start_nothing(world: World, policy: str) -> None:
    await world.apply(chat={"cold_start": policy})
    with pytest.raises(NoReadyReplica):
        await world.host.acquire("chat", "standard")
    assert world.driver.processes == []
    assert world.row("chat")["state"] == "configured"
    assert await ended(world, await world.host.load("chat")) == ("ready", None)
    (await world.host.acquire("chat", "standard")).release()


# --- failures of a start ----------------------------------------------------------------------------------------------


async def test_a_failed_start_rejects_all_waiters_with_the_typed_error(world: World) -> None:
    await world.apply(chat={"max_concurrency": 5})
    world.driver.script.append(ExitKind.BAD_FILE)
    results = await asyncio.gather(*(world.host.acquire("chat", "standard") for _ in range(5)), return_exceptions=True)
    assert [type(result) for result in results] == [EngineLaunchFailed] * 5
    row = world.row("chat")
    assert (row["state"], row["reason_code"]) == ("failed", "engine_unhealthy")
    assert "bad_file" in str(row["last_error"])
    assert world.metrics.seen["launched", "llama_cpp", "one", "bad_file"] == 1


@pytest.mark.parametrize("kind", [ExitKind.BAD_FILE, ExitKind.BAD_FLAG, ExitKind.OUT_OF_MEMORY])
async def test_what_would_fail_again_is_held_until_reset(world: World, kind: ExitKind) -> None:
    await world.apply(chat={})
    world.driver.script.append(kind)
    with pytest.raises(EngineLaunchFailed):
        await world.host.acquire("chat", "standard")
    with pytest.raises(AdmissionRejected, match="models reset chat") as held:
        await world.host.acquire("chat", "standard")
    assert held.value.reason == "engine_unhealthy"
    with pytest.raises(AdmissionRejected):
        await world.host.load("chat")
    assert world.host.availability("chat").state == "unavailable"
    await asyncio.sleep(0.05)
    assert len(world.driver.processes) == 1
    outcome = await world.host.reset("chat")
    assert outcome.state == "configured"
    assert await ended(world, outcome.job_id) == ("ready", None)
    (await world.host.acquire("chat", "standard")).release()


async def test_a_late_engine_is_stopped_and_tried_again(world: World) -> None:
    await world.apply(chat={})
    object.__setattr__(world.host._roster.services.timings, "readiness_s", 0.02)
    world.driver.script.append("slow")
    with pytest.raises(EngineLaunchFailed, match="readiness_timeout"):
        await world.host.acquire("chat", "standard")
    assert world.driver.processes[0].stops == 1
    object.__setattr__(world.host._roster.services.timings, "readiness_s", 2.0)
    (await world.host.acquire("chat", "standard")).release()


async def test_memory_refusal_prints_every_term_and_heals(world: World) -> None:
    world.devices.cpu = world.devices.cpu.__class__(-1, "cpu", "system memory", 400 * MIB, 100 * MIB)
    await world.apply(chat={})
    with pytest.raises(InsufficientMemory) as refused:
        await world.host.acquire("chat", "standard")
    text = str(refused.value)
    for term in (
        "weights 100",
        "KV cache 5",
        "overhead 15",
        "margin 12",
        "132 MiB",
        "100 MiB are free",
        "concurrency 1",
    ):
        assert term in text
    assert world.row("chat")["reason_code"] == "insufficient_capacity"
    assert world.driver.processes == []
    assert world.metrics.seen["ensure_failed", "insufficient_capacity"] == 1
    assert world.metrics.seen["placement_rejected", "chat", "insufficient_capacity"] == 1
    world.devices.cpu = world.devices.cpu.__class__(-1, "cpu", "system memory", 400 * MIB, 400 * MIB)
    (await world.host.acquire("chat", "standard")).release()


async def test_a_failed_pull_reaches_the_caller_and_the_next_request_pulls_again(world: World) -> None:
    await world.apply(chat={})
    world.store.failures.append(TransportFailed("hub", "reset by peer"))
    with pytest.raises(TransportFailed):
        await world.host.acquire("chat", "standard")
    assert world.row("chat")["reason_code"] == "transport_failed"
    (await world.host.acquire("chat", "standard")).release()
    pulls = [job for job in world.jobs.jobs() if job.kind == "pull"]
    assert [job.state for job in pulls] == ["failed", "ready"]
    assert pulls[0].error_code == "transport_failed"
    assert pulls[1].progress.completed_bytes == pulls[1].progress.total_bytes == 100 * MIB
    assert world.metrics.seen["artifact_error", "transport_failed"] == 1


async def test_manual_pull_misses_and_explicit_pull_cures_it(world: World) -> None:
    await world.apply(chat={"pull": "manual"})
    with pytest.raises(ManualArtifactMissing):
        await world.host.acquire("chat", "standard")
    artifact = world.host._roster.deployments["chat"].artifact
    assert await ended(world, await world.host.pull(artifact)) == ("ready", None)
    (await world.host.acquire("chat", "standard")).release()


async def test_an_unsafe_argument_is_refused_before_launch(world: World) -> None:
    await world.apply(chat={"extra_args": ["--host"]})
    world.driver.refusals.append(UnsafeArgument("llama_cpp", "--host", "owned by the host"))
    with pytest.raises(UnsafeArgument):
        await world.host.acquire("chat", "standard")
    assert world.driver.processes == []


async def test_a_build_without_the_card_falls_back_to_the_cpu_under_auto(world: World) -> None:
    cpu = world.devices.cpu
    world.devices.cards = (cpu.__class__(0, "cuda", "H200", 4096 * MIB, 4096 * MIB),)
    await world.apply(chat={})
    world.driver.refusals.append(EngineIncompatible("llama_cpp", "this build has no CUDA"))
    (await world.host.acquire("chat", "standard")).release()
    assert world.driver.alive[0].spec.device == "cpu"
    assert await ended(world, await world.host.stop("chat")) == ("ready", None)
    (await world.host.acquire("chat", "standard")).release()
    assert world.driver.alive[0].spec.device == "cuda"
    assert world.row("chat")["selected_devices"] == (0,)


# --- crashes ----------------------------------------------------------------------------------------------------------


async def test_a_crash_fails_at_once_and_heals_once_by_itself(world: World) -> None:
    await world.apply(chat={"warm": True})
    permit = await world.host.acquire("chat", "standard")
    first = world.driver.alive[0]
    first.die(ExitKind.SIGNAL)
    permit.engine_failed("connection reset")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.host.try_acquire("chat") is None
    await world.until("chat", "ready")
    assert world.row("chat")["active_requests"] == 0
    permit.release()
    assert world.row("chat")["active_requests"] == 0
    assert world.driver.alive[0] is not first


async def test_a_request_during_the_backoff_waits_for_the_scheduled_start(world: World) -> None:
    await world.apply(chat={"warm": True})
    first = world.driver.alive[0]
    first.die()
    # The backoff is short: a busy machine may look again only once it is over.
    await eventually(lambda: world.row("chat")["pid"] != first.pid)
    (await world.host.acquire("chat", "standard")).release()
    assert len(world.driver.processes) == 2


async def test_quick_exits_end_in_a_crash_loop_that_only_reset_clears(world: World) -> None:
    await world.apply(chat={})
    world.driver.script.extend([ExitKind.CRASH] * 4)
    with pytest.raises(EngineLaunchFailed):
        await world.host.acquire("chat", "standard")
    await eventually(lambda: world.row("chat")["reason_code"] == "crash_loop")
    assert len(world.driver.processes) == 4
    with pytest.raises(AdmissionRejected) as held:
        await world.host.acquire("chat", "standard")
    assert held.value.reason == "crash_loop"
    assert await ended(world, await world.host.stop("chat")) == ("ready", None)
    assert world.row("chat")["reason_code"] == "crash_loop"
    await world.host.reset("chat")
    (await world.host.acquire("chat", "standard")).release()


async def test_an_engine_that_still_runs_survives_a_failed_request(world: World) -> None:
    await world.apply(chat={"warm": True})
    permit = await world.host.acquire("chat", "standard")
    permit.engine_failed("timed out")
    await asyncio.sleep(0.01)
    assert world.row("chat")["state"] == "ready"
    permit.release()


# --- stop, drain, keep-alive ------------------------------------------------------------------------------------------


async def test_stop_drains_and_a_later_request_starts_again(world: World) -> None:
    await world.apply(chat={"warm": True})
    permit = await world.host.acquire("chat", "standard")
    queued = asyncio.create_task(world.host.acquire("chat", "standard"))
    await asyncio.sleep(0)
    job = await world.host.stop("chat")
    with pytest.raises(AdmissionRejected) as refused:
        await queued
    assert (refused.value.reason, refused.value.may_retry) == ("draining", True)
    with pytest.raises(AdmissionRejected):
        await world.host.acquire("chat", "standard")
    with pytest.raises(AdmissionRejected):
        await world.host.load("chat")
    with pytest.raises(ResetRefused):
        await world.host.reset("chat")
    assert world.row("chat")["state"] == "draining"
    assert world.driver.alive
    permit.release()
    assert await ended(world, job) == ("ready", None)
    row = world.row("chat")
    assert (row["state"], row["stop_cause"], row["memory"], row["pid"]) == ("stopped", "operator", None, None)
    assert row["job_id"] == job
    assert world.jobs.saved[job].note is None
    (await world.host.acquire("chat", "standard")).release()
    assert world.row("chat")["stop_cause"] is None


async def test_a_drain_ends_at_its_deadline_and_late_releases_count_nothing(world: World) -> None:
    await world.apply(chat={"warm": True})
    permit = await world.host.acquire("chat", "standard")
    report = await world.host._roster.deployments["chat"].stop("operator")
    assert report == Drain(active_at_start=1, cancelled_queued=0, remaining_active=1, timed_out=True)
    assert world.driver.alive == []
    (await world.host.acquire("chat", "standard")).release()
    permit.release()
    assert world.row("chat")["active_requests"] == 0


async def test_stop_during_a_pull_and_during_a_load(world: World) -> None:
    await world.apply(chat={})
    world.store.gate.clear()
    waiting = asyncio.create_task(world.host.acquire("chat", "standard"))
    await world.until("chat", "assigned")
    assert await ended(world, await world.host.stop("chat")) == ("ready", None)
    with pytest.raises(AdmissionRejected, match="draining"):
        await waiting
    world.store.gate.set()
    world.driver.script.append("slow")
    waiting = asyncio.create_task(world.host.acquire("chat", "standard"))
    await eventually(lambda: bool(world.driver.processes))
    assert await ended(world, await world.host.stop("chat")) == ("ready", None)
    with pytest.raises(AdmissionRejected, match="draining"):
        await waiting
    assert world.driver.processes[0].stops == 1


async def test_an_engine_that_cannot_be_ended_keeps_its_memory_booked(world: World) -> None:
    await world.apply(chat={"warm": True})
    process = world.driver.alive[0]
    process.stop_failure = EngineStopFailed("llama_cpp", process.pid, 5)
    await world.host.stop("chat")
    await eventually(lambda: world.row("chat")["reason_code"] == "engine_stop_failed")
    row = world.row("chat")
    assert (row["state"], row["pid"]) == ("draining", process.pid)
    assert row["memory"] is not None
    process.die(ExitKind.SIGNAL)
    await world.until("chat", "stopped")
    assert world.row("chat")["memory"] is None


async def test_reset_is_refused_on_a_healthy_generation(world: World) -> None:
    await world.apply(chat={"warm": True})
    with pytest.raises(ResetRefused):
        await world.host.reset("chat")
    assert world.row("chat")["state"] == "ready"


async def test_keep_alive_counts_from_the_last_release(world: World) -> None:
    await world.apply(chat={"keep_alive_secs": 1})
    permit = await world.host.acquire("chat", "standard")
    assert world.row("chat")["expires_at_ms"] is None
    queued = asyncio.create_task(world.host.acquire("chat", "standard"))
    await asyncio.sleep(1.1)
    assert world.row("chat")["state"] == "ready"
    permit.release()
    (await queued).release()
    expires = world.row("chat")["expires_at_ms"]
    assert isinstance(expires, int)
    assert 800 < expires - time.time() * 1000 <= 1000
    await asyncio.sleep(0.9)
    assert world.row("chat")["state"] == "ready"
    await world.until("chat", "stopped")
    assert world.row("chat")["stop_cause"] == "keep_alive"
    assert not [key for key in world.metrics.seen if key[0] == "evicted"]


async def test_keep_alive_zero_unloads_as_soon_as_idle_but_not_before_a_load_was_used(world: World) -> None:
    await world.apply(chat={"keep_alive_secs": 0})
    (await world.host.acquire("chat", "standard")).release()
    await world.until("chat", "stopped")
    assert await ended(world, await world.host.load("chat")) == ("ready", None)
    await asyncio.sleep(0.02)
    assert world.row("chat")["state"] == "ready"
    (await world.host.acquire("chat", "standard")).release()
    await world.until("chat", "stopped")


async def test_failed_is_never_reaped(world: World) -> None:
    await world.apply(chat={"keep_alive_secs": 0})
    world.driver.script.append(ExitKind.BAD_FILE)
    with pytest.raises(EngineLaunchFailed):
        await world.host.acquire("chat", "standard")
    await asyncio.sleep(0.03)
    assert world.row("chat")["state"] == "failed"


# --- jobs and shutdown ------------------------------------------------------------------------------------------------


async def test_a_failed_load_tells_the_reason_and_hides_the_detail(world: World) -> None:
    await world.apply(chat={})
    world.driver.script.append(ExitKind.OUT_OF_MEMORY)
    job_id = await world.host.load("chat")
    assert await ended(world, job_id) == ("failed", "engine_launch_failed")
    job = await world.host.jobs.get(job_id)
    assert job.error == "load failed (engine_launch_failed); inspect server logs"


async def test_an_acquirable_engine_is_provisioned_under_a_job(world: World) -> None:
    world.driver.state = "acquirable"
    await world.apply(chat={"warm": True})
    [job] = [job for job in world.jobs.jobs() if job.kind == "provision"]
    assert (job.subject, job.state) == ("llama_cpp", "ready")
    assert world.row("chat")["driver_availability"] == "acquirable"


async def test_unknown_job(world: World) -> None:
    with pytest.raises(UnknownJob):
        await world.host.jobs.get(JobId("01ARZ3NDEKTSV4RRFFQ69G5FAV"))


async def test_close_rejects_waiters_and_interrupts_jobs(world: World) -> None:
    await world.apply(chat={})
    world.driver.script.append("slow")
    job = await world.host.load("chat")
    waiting = asyncio.create_task(world.host.acquire("chat", "standard"))
    await world.until("chat", "preparing")
    await world.host.close()
    with pytest.raises(AdmissionRejected, match="draining"):
        await waiting
    assert world.jobs.saved[job].state == "failed"
    assert world.row("chat")["stop_cause"] == "shutdown"
    with pytest.raises(AdmissionRejected, match="draining"):
        await world.host.acquire("chat", "standard")


async def test_a_storm_of_requests_disconnects_and_crashes_leaks_nothing(world: World) -> None:
    await world.apply(chat={"max_concurrency": 4, "max_queue_depth": 50, "queue_timeout_ms": 500})

    async def client(number: int) -> None:
        try:
            async with asyncio.timeout(0.001 * (number % 17 + 1)):
                permit = await world.host.acquire("chat", "standard")
        except (TimeoutError, AdmissionRejected, EngineLaunchFailed):
            return
        try:
            await asyncio.sleep(0.001 * (number % 5))
        finally:
            permit.release()

    async with asyncio.TaskGroup() as group:
        for number in range(400):
            group.create_task(client(number))
            if number % 150 == 149 and world.driver.alive:
                world.driver.alive[0].die(ExitKind.SIGNAL)
            if number % 10 == 0:
                await asyncio.sleep(0.001)
    await world.until("chat", "ready")
    assert world.row("chat")["active_requests"] == 0
    assert world.row("chat")["queued_requests"] == 0


async def test_measured_memory_stands_beside_the_estimate(world: World) -> None:
    await world.apply(chat={"warm": True})
    await world.host.refresh()
    assert world.row("chat")["resident_bytes"] is None or world.row("chat")["resident_bytes"]
