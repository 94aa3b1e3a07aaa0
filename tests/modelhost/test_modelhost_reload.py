"""The reload transaction: what is kept, what is replaced, what is undone, and what a candidate may not change."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from sbproxy.catalog.core.model import Attention
from sbproxy.config.core.model_host import ModelHostConfig
from sbproxy.engines.core.model import ExitKind
from sbproxy.errors.artifacts import TransportFailed
from sbproxy.errors.catalog import UnknownModel
from sbproxy.errors.engines import EngineLaunchFailed
from sbproxy.errors.modelhost import (
    AdmissionRejected,
    FoundationChanged,
    InsufficientMemory,
    InvalidDesired,
    UnknownDeployment,
)
from sbproxy.modelhost.core.jobs import JobId
from support.model_host_parts import MIB, World, catalog, eventually, host_config, model


async def test_first_boot_starts_warm_and_pulls_on_boot(world: World) -> None:
    prepared = await world.host.prepare(
        world.catalog, host_config(hot={"warm": True}, here={"pull": "on_boot", "model": "two"}, cold={"model": "two"})
    )
    # Staged for people to see, and nowhere for requests.
    assert [(row.deployment, row.job_id is None) for row in world.host.status()] == [
        ("cold", True),
        ("here", False),
        ("hot", False),
    ]
    with pytest.raises(UnknownDeployment):
        world.host.availability("hot")
    assert world.host.resident_digests() == frozenset()
    assert sorted(world.store.fetches) == [("one:q4", "runtime"), ("two:q4", "startup")]
    report = await prepared.commit()
    assert (report.runtime_revision, report.added) == (1, ("cold", "here", "hot"))
    # "cold" shares its artifact with "here", which was pulled first or second: both are honest.
    assert [row.state for row in world.host.status()][1:] == ["cached", "ready"]
    assert world.row("cold")["state"] in ("configured", "cached")
    assert world.host.resident_digests() < world.host.configured_digests()


async def test_an_unchanged_generation_keeps_its_engine(world: World) -> None:
    await world.apply(chat={"warm": True}, other={"model": "two", "warm": True})
    permit = world.host.try_acquire("chat")
    assert permit is not None
    pid = world.row("chat")["pid"]
    prepared = await world.host.prepare(
        world.catalog, host_config(chat={"warm": True}, other={"model": "two", "warm": True, "max_context": 99})
    )
    report = await prepared.commit()
    assert (report.preserved, report.changed, report.runtime_revision) == (("chat",), ("other",), 2)
    assert (world.row("chat")["pid"], world.row("chat")["generation"]) == (pid, 1)
    assert world.row("other")["generation"] == 2
    permit.release()


async def test_rolling_starts_the_new_one_before_the_old_one_drains(world: World) -> None:
    await world.apply(chat={"warm": True})
    permit = await world.host.acquire("chat", "standard")
    world.driver.script.append("slow")
    prepared = await world.host.prepare(world.catalog, host_config(chat={"warm": True, "max_context": 64}))
    commit = asyncio.create_task(prepared.commit())
    await eventually(lambda: len(world.driver.processes) == 2)
    assert [(row.generation, row.state) for row in world.host.status()] == [(1, "ready"), (2, "preparing")]
    world.driver.processes[1].started.set()
    await commit
    await eventually(lambda: [(r.generation, r.state) for r in world.host.status()] == [(2, "ready"), (1, "draining")])
    fresh = world.host.try_acquire("chat")
    assert fresh is not None
    assert fresh.generation == 2
    fresh.release()
    permit.release()
    await eventually(lambda: len(world.host.status()) == 1)
    assert len(world.driver.alive) == 1


async def test_rolling_that_fails_leaves_the_old_one_serving(world: World) -> None:
    await world.apply(chat={"warm": True})
    world.driver.script.append(ExitKind.BAD_FLAG)
    prepared = await world.host.prepare(world.catalog, host_config(chat={"warm": True, "max_context": 64}))
    with pytest.raises(EngineLaunchFailed):
        await prepared.commit()
    assert (world.host.runtime_revision, world.row("chat")["generation"]) == (1, 1)
    permit = world.host.try_acquire("chat")
    assert permit is not None
    permit.release()
    assert len(world.driver.alive) == 1


async def test_recreate_drains_first_and_tells_requests_so(world: World) -> None:
    await world.apply(chat={"warm": True, "rollout": "recreate"})
    world.driver.script.append("slow")
    prepared = await world.host.prepare(
        world.catalog, host_config(chat={"warm": True, "rollout": "recreate", "max_context": 64})
    )
    commit = asyncio.create_task(prepared.commit())
    await eventually(lambda: len(world.driver.processes) == 2)
    assert world.driver.processes[0].exited.done()
    with pytest.raises(AdmissionRejected, match="draining"):
        await world.host.acquire("chat", "standard")
    assert world.host.availability("chat").state == "unavailable"
    world.driver.processes[1].started.set()
    await commit
    assert world.row("chat")["generation"] == 2


async def test_recreate_that_fails_restores_the_old_generation(world: World) -> None:
    await world.apply(chat={"warm": True, "rollout": "recreate"})
    world.driver.script.append(ExitKind.OUT_OF_MEMORY)
    prepared = await world.host.prepare(
        world.catalog, host_config(chat={"warm": True, "rollout": "recreate", "max_context": 64})
    )
    with pytest.raises(EngineLaunchFailed, match="out_of_memory"):
        await prepared.commit()
    assert (world.row("chat")["generation"], world.row("chat")["state"]) == (1, "ready")
    assert len(world.driver.processes) == 3
    assert world.host.config.deployments["chat"].max_context is None


async def test_rolling_needs_room_for_two_and_recreate_does_not(world: World) -> None:
    world.devices.cpu = world.devices.cpu.__class__(-1, "cpu", "system memory", 200 * MIB, 200 * MIB)
    await world.apply(chat={"warm": True})
    with pytest.raises(InsufficientMemory, match="recreate"):
        await world.host.prepare(world.catalog, host_config(chat={"warm": True, "max_context": 64}))
    assert world.metrics.seen["placement_rejected", "chat", "insufficient_capacity"] == 1
    prepared = await world.host.prepare(
        world.catalog, host_config(chat={"warm": True, "max_context": 64, "rollout": "recreate"})
    )
    await prepared.commit()
    assert world.row("chat")["generation"] == 2


async def test_what_can_never_fit_is_refused_before_anything_changes(world: World) -> None:
    world.devices.cpu = world.devices.cpu.__class__(-1, "cpu", "system memory", 100 * MIB, 100 * MIB)
    with pytest.raises(InsufficientMemory):
        await world.host.prepare(world.catalog, host_config(chat={}))
    world.devices.cpu = world.devices.cpu.__class__(-1, "cpu", "system memory", 200 * MIB, 200 * MIB)
    with pytest.raises(InsufficientMemory) as both:
        await world.host.prepare(world.catalog, host_config(a={"warm": True}, b={"warm": True, "model": "two"}))
    assert both.value.deployment == "b"


async def test_the_catalogs_minimum_gates_too(world: World) -> None:
    world.catalog = catalog(model("one", minimum=9000 * MIB))
    with pytest.raises(InsufficientMemory, match="at least 9000 MiB"):
        await world.host.prepare(world.catalog, host_config(chat={"variant": "q4"}))


async def test_a_removed_deployment_drains_in_the_background(world: World) -> None:
    await world.apply(chat={"warm": True})
    permit = await world.host.acquire("chat", "standard")
    await world.apply()
    assert world.host.try_acquire("chat") is None
    assert [(row.state, row.stop_cause) for row in world.host.status()] in (
        [("draining", "reload")],
        [("ready", None)],
    )
    permit.release()
    await eventually(lambda: world.host.status() == [])
    await world.apply(chat={})
    assert world.row("chat")["generation"] == 2


async def test_a_stopped_one_stays_stopped_when_it_is_replaced(world: World) -> None:
    await world.apply(chat={})
    await world.apply(chat={"max_context": 64})
    assert world.driver.processes == []
    assert world.row("chat")["generation"] == 2


async def test_abort_changes_nothing_and_frees_the_next_candidate(world: World) -> None:
    await world.apply(chat={"warm": True})
    prepared = await world.host.prepare(world.catalog, host_config())
    second = asyncio.create_task(world.host.prepare(world.catalog, host_config(chat={})))
    await asyncio.sleep(0.01)
    assert not second.done()
    await prepared.abort()
    await prepared.abort()
    with pytest.raises(RuntimeError):
        await prepared.commit()
    await (await second).abort()
    assert world.row("chat")["state"] == "ready"


async def test_a_failed_prepare_changes_nothing_and_frees_the_next(world: World) -> None:
    await world.apply(chat={"warm": True})
    world.store.failures.append(TransportFailed("hub", "reset"))
    with pytest.raises(TransportFailed):
        await world.host.prepare(world.catalog, host_config(chat={}, two={"model": "two", "pull": "on_boot"}))
    with pytest.raises(UnknownModel):
        await world.host.prepare(world.catalog, host_config(chat={"model": "three"}))
    assert (world.host.runtime_revision, world.row("chat")["state"]) == (1, "ready")
    await world.apply(chat={"warm": True})


async def test_one_bad_model_need_not_keep_a_daemon_from_booting(world: World) -> None:
    world.driver.script.append(ExitKind.BAD_FILE)
    prepared = await world.host.prepare(world.catalog, host_config(bad={"warm": True}))
    report = await prepared.commit(keep_failed=True)
    assert report.degraded == ("bad",)
    assert world.row("bad")["state"] == "failed"


@pytest.mark.parametrize("field", ["cache.directory", "catalog_revision", "engines"])
async def test_the_foundation_may_change_only_with_nothing_resident(world: World, field: str) -> None:
    await world.apply(chat={"warm": True})
    changed = host_config(chat={"warm": True}).model_dump()
    other = world.catalog
    if field == "cache.directory":
        changed["cache"] = {"directory": "/elsewhere"}
    elif field == "engines":
        changed["engines"] = {"llama_cpp": {"acceleration": "cpu"}}
    else:
        other = catalog(revision="r2")
    config = ModelHostConfig.model_validate(changed)
    with pytest.raises(FoundationChanged) as refused:
        await world.host.prepare(other, config)
    assert (refused.value.field, refused.value.deployments) == (field, ("chat",))
    await world.host.stop("chat")
    await world.until("chat", "stopped")
    report = await (await world.host.prepare(other, config)).commit()
    assert report.preserved == (() if field == "catalog_revision" else ("chat",))
    (await world.host.acquire("chat", "standard")).release()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tensor_parallel": 2}, "tensor_parallel"),
        ({"heterogeneous_variants": True}, "heterogeneous_variants"),
        ({"required_labels": {"zone": "a"}}, "required_labels"),
        ({"spread_by": ["zone"]}, "spread_by"),
    ],
)
async def test_intent_that_this_host_cannot_carry_is_refused_by_name(
    world: World, change: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidDesired) as refused:
        await world.host.prepare(world.catalog, host_config(chat=change))
    assert (refused.value.deployment, refused.value.field) == ("chat", field)


async def test_another_authority_is_refused(world: World) -> None:
    config = ModelHostConfig.model_validate({"authority": "cluster_authority"})
    with pytest.raises(InvalidDesired, match="authority"):
        await world.host.prepare(world.catalog, config)


async def test_a_cancelled_commit_undoes_itself(world: World) -> None:
    await world.apply(chat={"warm": True, "rollout": "recreate"})
    world.driver.script.append("slow")
    prepared = await world.host.prepare(
        world.catalog, host_config(chat={"rollout": "recreate", "warm": True, "max_context": 9})
    )
    commit = asyncio.create_task(prepared.commit())
    await eventually(lambda: len(world.driver.processes) == 2)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert len(world.driver.alive) == 0
    await world.until("chat", "ready")
    assert (world.row("chat")["generation"], world.row("chat")["state"]) == (1, "ready")
    assert len(world.driver.alive) == 1


@pytest.mark.parametrize("warm", [True, False])
async def test_what_cannot_fit_is_refused_before_a_byte_is_fetched(world: World, warm: bool) -> None:
    told = replace(model("one"), attention=Attention(layers=1000, kv_heads=64, head_dim=128))
    world.catalog = catalog(told, model("two"))
    with pytest.raises(InsufficientMemory, match=r"needs \d+\.\d GiB on .*KV cache 31\.2 GiB .* but 8\.0 GiB are free"):
        await world.apply(chat={"warm": warm, "pull": "on_boot"})
    assert world.store.fetches == []
    assert world.host.status() == []
    await world.apply(chat={"model": "two", "warm": warm})
    assert world.row("chat")["generation"] == 1


async def test_a_candidate_is_seen_while_its_artifact_is_pulled(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world.store.gate.clear()
    preparing = asyncio.create_task(world.host.prepare(world.catalog, host_config(chat={"warm": True})))
    await eventually(lambda: len(world.host.status()) == 1 and world.row("chat")["job_id"] is not None)
    pull = await world.host.jobs.get(JobId(str(world.row("chat")["job_id"])))
    assert (pull.kind, world.row("chat")["state"]) == ("pull", "configured")
    # It cannot be stopped before it is there; the stop waits and then acts on it.
    stop = await world.host.stop("chat")
    world.store.gate.set()
    await (await preparing).commit()
    await world.until("chat", "stopped")
    await eventually(lambda: world.host.jobs.unfinished == 0)
    assert (await world.host.jobs.get(stop)).state == "ready"
    said = [entry.getMessage().split(" ")[0] for entry in caplog.records]
    assert [word for word in said if word in ("pull_started", "pull_finished", "launch_started", "launch_ready")] == [
        "pull_started",
        "pull_finished",
        "launch_started",
        "launch_ready",
    ]


async def test_a_stop_during_a_commit_waits_for_it_and_holds(world: World) -> None:
    await world.apply(chat={"warm": True})
    world.driver.script.append("slow")
    prepared = await world.host.prepare(world.catalog, host_config(chat={"warm": True, "max_context": 64}))
    commit = asyncio.create_task(prepared.commit())
    await eventually(lambda: len(world.driver.processes) == 2)
    job = await world.host.stop("chat")
    await asyncio.sleep(0.02)
    assert len(world.driver.alive) == 2
    world.driver.processes[1].started.set()
    await commit
    await world.until("chat", "stopped")
    await eventually(lambda: world.host.jobs.unfinished == 0)
    assert world.driver.alive == []
    assert [(row.generation, row.state, row.job_id) for row in world.host.status()] == [(2, "stopped", job)]


async def test_a_load_whose_job_is_slow_to_write_acts_on_the_generation_of_then(world: World) -> None:
    await world.apply(chat={})
    save = world.jobs.save
    world.jobs.save = lambda job: (time.sleep(0.05), save(job))[1]  # type: ignore[method-assign]
    loading = asyncio.create_task(world.host.load("chat"))
    await asyncio.sleep(0.01)
    await world.apply()
    job = await loading
    await eventually(lambda: world.host.jobs.unfinished == 0)
    assert (await world.host.jobs.get(job)).error_code == "unknown_deployment"
    assert world.driver.processes == []


async def test_a_host_that_closes_under_a_commit_leaves_nothing(world: World) -> None:
    recreate: dict[str, object] = {"warm": True, "rollout": "recreate"}
    await world.apply(chat=recreate)
    world.driver.script.append("slow")
    prepared = await world.host.prepare(world.catalog, host_config(chat=recreate | {"max_context": 64}))
    commit = asyncio.create_task(prepared.commit())
    await eventually(lambda: len(world.driver.processes) == 2)
    commit.cancel()
    async with asyncio.timeout(1):
        with pytest.raises(asyncio.CancelledError):
            await commit
        await world.host.close()
    assert world.driver.alive == []


async def test_an_engine_failure_is_logged_with_what_follows(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.apply(chat={"warm": True})
    engine = world.driver.alive[0]
    engine.die()
    await world.until("chat", "failed")
    said = next(entry for entry in caplog.records if entry.getMessage().startswith("engine_failed"))
    assert said.levelname == "WARNING"
    expected = f"engine_failed deployment=chat generation=1 replica=0 pid={engine.pid} reason=engine_unhealthy:"
    assert said.getMessage() == f"{expected} crash: scripted; restart in 5 ms"


async def test_a_reload_tries_a_failed_warm_deployment_again(world: World) -> None:
    await world.apply(chat={"warm": True}, other={"model": "two"})
    world.driver.script.extend([ExitKind.BAD_FILE])
    world.driver.alive[0].die(ExitKind.BAD_FILE)
    await world.until("chat", "failed")
    prepared = await world.host.prepare(world.catalog, host_config(chat={"warm": True}, other={"model": "two"}))
    report = await prepared.commit()
    assert (report.preserved, report.degraded) == (("chat", "other"), ("chat",)), "it did not start, and is named"
    prepared = await world.host.prepare(world.catalog, host_config(chat={"warm": True}, other={"model": "two"}))
    assert (await prepared.commit()).degraded == ()
    assert world.row("chat")["state"] == "ready"
    assert world.row("chat")["generation"] == 1
