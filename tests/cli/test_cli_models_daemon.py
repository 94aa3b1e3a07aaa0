"""`models ps|load|stop|reset|remove` as child processes against the real admin application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sbproxy.modelhost.core.jobs import JobId
from support.admin_world import ADMIN, VIEWER, AdminWorld, admin_world, job, row, ulid
from support.cli import Ran, spawn
from support.daemon import tiny_catalog
from support.snapshot import check_snapshot

pytestmark = pytest.mark.e2e


async def ask(world: AdminWorld, *argv: str, who: tuple[str, str] = ADMIN) -> Ran:
    env = {
        "SB_ADMIN_URL": str(world.server.make_url("/")),
        "SB_ADMIN_USERNAME": who[0],
        "SB_ADMIN_PASSWORD": who[1],
    }
    return await spawn("models", *argv, env=env)


async def wait_for(happened: Callable[[], bool]) -> None:
    for _ in range(1000):
        if happened():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never happened")


async def test_ps() -> None:
    async with admin_world() as world:
        world.host.rows = [
            row(),
            row("big", selected_devices=(0, 1), engine="vllm", port=None, state="preparing"),
            row("broken", state="failed", reason_code="crash_loop", last_error="exit 1: \x1b]0;owned\x07bad file",
                port=None, selected_devices=(), active_requests=0, queued_requests=0),
        ]  # fmt: skip
        text, as_json = await asyncio.gather(ask(world, "ps"), ask(world, "ps", "--format", "json", who=VIEWER))
    assert (text.code, text.err) == (0, "")
    assert text.out.splitlines()[0].split() == ["DEPLOYMENT", "STATE", "PORT", "ACTIVE", "QUEUED", "DEVICES", "REASON"]
    assert "\x1b" not in text.out
    assert "owned" not in text.out
    check_snapshot("cli/models-ps.txt", text.out)
    body = json.loads(as_json.out)
    assert list(body) == [
        "schema_version", "command", "serving", "runtime_revision", "deployments", "models", "local_serving",
    ]  # fmt: skip
    assert (body["schema_version"], body["command"]) == (1, "models.ps")
    assert "\x1b" not in as_json.out


async def test_load_waits_for_its_job() -> None:
    async with admin_world() as world:
        world.jobs.moved(job(42, "queued"))
        asking = asyncio.create_task(ask(world, "load", "local-qwen", "--format", "json"))
        await wait_for(lambda: bool(world.host.calls))
        world.jobs.moved(job(42, "running"))
        await asyncio.sleep(0.3)
        assert not asking.done()
        world.jobs.moved(job(42, "ready"))
        ran = await asking
    assert ran.code == 0, ran.err
    body = json.loads(ran.out)
    assert {key: body[key] for key in ("schema_version", "command", "deployment", "state", "job_id", "poll_url")} == {
        "schema_version": 1,
        "command": "models.load",
        "deployment": "local-qwen",
        "state": "queued",
        "job_id": ulid(42),
        "poll_url": f"/admin/model-host/jobs/{ulid(42)}",
    }
    assert body["job"]["state"] == "ready"
    assert ran.err.splitlines() == [f"load local-qwen: {state}" for state in ("Queued", "Running", "Ready")]


async def test_a_failed_job_is_a_failed_command() -> None:
    async with admin_world() as world:
        world.jobs.moved(job(42, "failed", error="load failed (insufficient_capacity)", error_code="x"))
        ran = await ask(world, "load", "local-qwen")
    assert (ran.code, ran.out) == (2, "")
    assert "load of local-qwen failed: load failed (insufficient_capacity)" in ran.err
    assert ulid(42) in ran.err


async def test_a_failed_load_tells_the_cause_that_its_replica_knows() -> None:
    async with admin_world() as world:
        cause = "tiny:q4 is not in the cache and its pull policy is manual; run: sbproxy models pull tiny"
        world.host.rows = [row(), row(replica=1, state="failed", reason_code="engine_unhealthy", last_error=cause)]
        world.jobs.moved(job(42, "failed", error="load failed (manual_artifact_missing)", error_code="manual"))
        ran = await ask(world, "load", "local-qwen")
    assert ran.code == 2
    assert ran.err.splitlines()[-1] == (
        f"sbproxy models load: load of local-qwen failed: {cause} (manual) (job {ulid(42)})"
    )


async def test_stop_without_waiting_and_reset() -> None:
    async with admin_world() as world:
        world.jobs.moved(job(42, "ready", "reset"))
        stopped, reset = await asyncio.gather(
            ask(world, "stop", "local-qwen", "--no-wait", "--format", "json"), ask(world, "reset", "local-qwen")
        )
        assert sorted(world.host.calls) == [("reset", "local-qwen"), ("stop", "local-qwen")]
    assert json.loads(stopped.out) == {
        "schema_version": 1,
        "command": "models.stop",
        "deployment": "local-qwen",
        "state": "queued",
        "job_id": ulid(42),
        "poll_url": f"/admin/model-host/jobs/{JobId(ulid(42))}",
    }
    assert (reset.code, reset.out) == (0, "local-qwen: reset, now configured\n")


async def test_refusals() -> None:
    async with admin_world() as world:
        unknown, viewer, wrong = await asyncio.gather(
            ask(world, "load", "nope"),
            ask(world, "stop", "local-qwen", who=VIEWER),
            ask(world, "ps", who=("admin", "wrong-password")),
        )
    assert [ran.code for ran in (unknown, viewer, wrong)] == [2, 2, 2]
    assert unknown.err.startswith("sbproxy models load: the daemon refused (HTTP 404, unknown_deployment)")
    assert "read" in viewer.err
    assert "SB_ADMIN_PASSWORD" in wrong.err
    assert "wrong-password" not in wrong.err


async def test_remove_asks_the_daemon_over_the_same_cache(tmp_path: Path) -> None:
    catalog, cache = tiny_catalog(tmp_path), tmp_path / "cache"
    place = ("--catalog-file", str(catalog), "--cache-dir", str(cache))
    pulled = await spawn("models", "pull", "tiny-model", *place, "--format", "json")
    digest = json.loads(pulled.out)["artifacts"][0]["artifact_digest"]
    async with admin_world() as world:
        world.host.rows = [row(artifact_digest=digest)]
        record = world.host.files.artifacts[0]
        world.host.files = replace(world.host.files, cache_root=str(cache), artifacts=[replace(record, digest=digest)])
        held = await ask(world, "remove", "tiny-model", *place)
        world.host.rows = [row(artifact_digest=digest, state="stopped", pid=None, port=None)]
        wanted = await ask(world, "remove", "tiny-model", *place)
        world.host.rows = []
        freed = await ask(world, "remove", "tiny-model", *place)
    assert (wanted.code, wanted.out) == (2, "")
    assert "configured" in wanted.err, "a stopped deployment of the daemon still wants it"
    assert (held.code, held.out) == (2, "")
    assert "resident" in held.err
    assert freed.code == 0, freed.err
