"""The client against the real admin application: every method, every role, streams and their gaps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from sbproxy.client import AdminClient, JobUpdate, RequestSeen
from sbproxy.config.core.document import AdminConfig
from sbproxy.errors.client import DaemonRefused, Forbidden, ProtocolMismatch, Unauthorized
from sbproxy.errors.modelhost import AdmissionRejected
from sbproxy.modelhost.core.jobs import JobProgress
from sbproxy.observe.core.value import Price, PriceTable
from support.admin_world import (
    ADMIN,
    CHIEF,
    VIEWER,
    AdminWorld,
    admin_config,
    admin_world,
    job,
    request_record,
    row,
    ulid,
)


@asynccontextmanager
async def connected(
    who: tuple[str, str] = ADMIN, *, config: AdminConfig | None = None, path: str = "/"
) -> AsyncIterator[tuple[AdminWorld, AdminClient]]:
    async with admin_world(config) as world, AdminClient(str(world.server.make_url(path)), *who) as client:
        yield world, client


async def test_reads() -> None:
    async with connected() as (world, client):
        status = await client.status()
        assert (status.serving, status.runtime_revision) == (True, 7)
        assert status.deployments == status.models
        (shown,) = status.deployments
        assert (shown.deployment, shown.state, shown.port) == ("local-qwen", "ready", 41234)
        assert shown.memory is not None
        assert shown.memory.total_bytes == row().memory.total_bytes  # type: ignore[union-attr]
        catalog = await client.catalog()
        assert catalog.models["qwen2.5-0.5b-instruct"].variants[0].id == "q4_k_m"
        desired = await client.deployments()
        assert (desired.authority, desired.read_only) == ("file_managed", True)
        files = await client.files()
        assert files.artifacts[0].resident is True
        assert (await client.drift()).drift is False
        assert (await client.health()).status == "ok"
        world.jobs.put(job(1), job(2, "ready"))
        assert [each.id for each in await client.jobs()] == [ulid(1), ulid(2)]
        assert (await client.job(ulid(2))).terminal
        world.value.publish(PriceTable({("localhost", "qwen"): Price(1_000_000, 0)}))
        world.observer.finished(request_record(tokens_in=7, tokens_out=0))
        value = await client.value()
        assert (value.models[0].model, value.total_saved_micros) == ("qwen", 7)


async def test_changes() -> None:
    async with connected() as (world, client):
        accepted = await client.load("local-qwen")
        assert (accepted.state, accepted.job_id) == ("queued", ulid(42))
        assert accepted.poll_url.endswith(ulid(42))
        await client.stop("local-qwen")
        assert (await client.reset("local-qwen")).state == "configured"
        assert (await client.reload()).fully_applied
        world.jobs.put(job(1, "downloading", "pull"))
        assert (await client.cancel_job(ulid(1))).state == "downloading"
        assert world.jobs.cancelled == [ulid(1)]
        assert world.host.calls == [("load", "local-qwen"), ("stop", "local-qwen"), ("reset", "local-qwen")]


async def test_refusals_carry_the_daemons_word() -> None:
    async with connected() as (world, client):
        with pytest.raises(DaemonRefused, match=r"404, unknown_deployment.*local-qwen") as unknown:
            await client.load("local-qwne")
        assert unknown.value.status == 404
        world.host.failure = AdmissionRejected("local-qwen", "draining")
        with pytest.raises(DaemonRefused) as draining:
            await client.load("local-qwen")
        assert (draining.value.status, draining.value.reason_code) == (409, "draining")
        with pytest.raises(DaemonRefused, match="unknown_job"):
            await client.job(ulid(9))


@pytest.mark.parametrize("who", [VIEWER, CHIEF])
async def test_operators_are_let_in_by_a_session(who: tuple[str, str]) -> None:
    async with connected(who) as (_, client):
        assert (await client.status()).serving
        assert (await client.session()).username == who[0]


async def test_roles_hold() -> None:
    async with connected(VIEWER) as (world, client):
        with pytest.raises(Forbidden):
            await client.load("local-qwen")
        assert world.host.calls == []
    async with connected(CHIEF) as (world, client):
        await client.load("local-qwen")
        assert world.host.calls == [("load", "local-qwen")]


async def test_a_wrong_password() -> None:
    async with connected(("admin", "nope")) as (_, client):
        with pytest.raises(Unauthorized, match="SB_ADMIN_PASSWORD"):
            await client.status()


async def test_an_address_that_is_not_allowed() -> None:
    async with connected(config=admin_config(allow_ips=["10.9.9.9/32"])) as (_, client):
        with pytest.raises(Forbidden, match="allow_ips"):
            await client.status()


async def test_the_rate_limit_is_a_refusal() -> None:
    async with connected(config=admin_config(rate_limit_per_minute=2)) as (_, client):
        with pytest.raises(DaemonRefused, match="429"):
            for _attempt in range(3):
                await client.status()


async def test_follow_one_job_from_queued_to_ready() -> None:
    async with connected() as (world, client):
        world.jobs.moved(job(1, "queued"))

        async def work() -> None:
            for done in (10, 20, 30):
                await asyncio.sleep(0.01)
                world.jobs.moved(job(1, "running", progress=JobProgress(done, 30)))
            world.jobs.moved(job(1, "ready", progress=JobProgress(30, 30)))

        working = asyncio.create_task(work())
        seen = [item async for item in client.follow_job(ulid(1))]
        await working
        assert all(isinstance(item, JobUpdate) for item in seen)
        updates = [item for item in seen if isinstance(item, JobUpdate)]
        assert [update.job.progress.completed_bytes for update in updates] == [0, 10, 20, 30, 30]
        assert updates[-1].job.state == "ready"


async def test_follow_a_job_that_ended_before_the_daemon_started() -> None:
    async with connected() as (world, client):
        world.jobs.put(job(5, "failed", error="no room", error_code="disk_full"))
        (only,) = [item async for item in client.follow_job(ulid(5))]
        assert isinstance(only, JobUpdate)
        assert only.job.error_code == "disk_full"


async def test_follow_all_jobs_resumes_where_it_was() -> None:
    async with connected() as (world, client):
        world.jobs.moved(job(1, "queued"))
        world.jobs.moved(job(2, "ready"))
        async with asyncio.timeout(20), aclosing(client.follow_jobs(last_event_id="0")) as items:
            item = await anext(items)
        assert isinstance(item, JobUpdate)
        assert (item.sequence, item.job.id) == ("1", ulid(2))


async def test_follow_requests() -> None:
    async with connected() as (world, client):
        world.observer.finished(request_record(1))
        assert [entry.request_id for entry in await client.requests(limit=10)] == ["req-1"]
        assert await client.requests(status=500) == []
        async with asyncio.timeout(20), aclosing(client.follow_requests(last_event_id="0")) as items:
            item = await anext(items)
        assert isinstance(item, RequestSeen)
        assert item.entry.request_id == "req-1"


async def test_a_wrong_prefix_is_no_admin_api() -> None:
    async with connected(path="/nothing-here") as (_, client):
        with pytest.raises((ProtocolMismatch, DaemonRefused)):
            await client.status()
