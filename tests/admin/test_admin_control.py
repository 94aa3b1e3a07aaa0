"""Probes, reload, drift, health and the metrics mirror (document 2)."""

from __future__ import annotations

import asyncio
import re

import pytest

from sbproxy.admin.ports import ComponentHealth
from sbproxy.errors import SbproxyError
from sbproxy.errors.admin import ReloadUnavailable
from sbproxy.errors.artifacts import DigestMismatch
from sbproxy.errors.catalog import UnknownModel
from sbproxy.errors.config import ConfigInvalid, ConfigUnreadable, Problem, RestartRequired
from sbproxy.errors.modelhost import FoundationChanged
from support.admin_world import ADMIN, admin_world, request_record
from support.snapshot import check_json_snapshot

FILE = "/etc/secret-folder/sb.yml"


async def test_plain_probes() -> None:
    async with admin_world() as world:
        assert await world.get("/healthz", None) == (200, {"status": "ok"})
        for path in ("/livez", "/live"):
            assert await world.get(path, None) == (200, {"alive": True})
        assert await world.get("/.well-known/sbproxy/quote-keys.json", None) == (200, {"keys": []})
        assert await world.get("/api/health") == (200, {"status": "ok", "origins": []})


async def test_health_and_readiness() -> None:
    async with admin_world() as world:
        status, body = await world.get("/health", None)
        assert (status, body["status"], body["uptime_seconds"]) == (200, "ok", 86_400)
        assert re.fullmatch(r"\d+\.\d+\.\d+", body["version"])
        body["version"] = "0.0.0"
        check_json_snapshot("api/health.json", body)
        for path in ("/readyz", "/ready"):
            status, body = await world.get(path, None)
            assert status == 200
            check_json_snapshot("api/readyz.json", body)


@pytest.mark.parametrize(("state", "status"), [("degraded", 200), ("not_configured", 200), ("unhealthy", 503)])
async def test_only_unhealthy_fails(state: str, status: int) -> None:
    async with admin_world() as world:
        world.health[:] = [ComponentHealth("b", state, "why"), ComponentHealth("a", "healthy")]  # type: ignore[arg-type]
        word = "ok" if status == 200 else "unready"
        assert await world.get("/ready", None) == (
            status,
            {
                "status": word,
                "components": [{"name": "a", "status": "healthy"}, {"name": "b", "status": state, "detail": "why"}],
            },
        )
        got, body = await world.get("/health", None)
        assert (got, body["status"]) == (status, word)


async def test_reload_tells_its_revision() -> None:
    async with admin_world() as world:
        status, body = await world.post("/admin/reload")
        assert status == 200
        check_json_snapshot("api/reload.json", body)
        world.reloader.degraded = ("listings",)
        _, body = await world.post("/admin/reload")
        assert (body["fully_applied"], body["degraded"]) == (False, ["listings"])


async def test_a_second_reload_is_a_409() -> None:
    async with admin_world() as world:
        world.reloader.hold.clear()
        first = asyncio.create_task(world.post("/admin/reload"))
        await asyncio.sleep(0.05)
        status, body = await world.post("/admin/reload")
        assert (status, body["code"]) == (409, "reload_in_flight")
        world.reloader.hold.set()
        assert (await first)[0] == 200


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (ConfigInvalid(FILE, (Problem(FILE, "proxy.admin.port", "must be a number", 3),)), 400),
        (RestartRequired(("proxy.http_bind_port",)), 400),
        (UnknownModel("x"), 400),
        (FoundationChanged("cache.directory", ("a",)), 400),
        (ConfigUnreadable(FILE, "no such file"), 500),
        (DigestMismatch("f", "a" * 64, "b" * 64), 500),
        (ReloadUnavailable("no file was given at start"), 503),
    ],
)
async def test_refused_reloads(failure: SbproxyError, status: int) -> None:
    async with admin_world() as world:
        world.reloader.failure = failure
        got, body = await world.post("/admin/reload")
        assert (got, body["code"]) == (status, failure.code)
        assert "secret-folder" not in body["error"]
        assert "sb.yml" in body["error"] or "sb.yml" not in str(failure)


async def test_drift() -> None:
    async with admin_world() as world:
        status, body = await world.get("/admin/drift")
        assert (status, body["drift"]) == (200, False)
        check_json_snapshot("api/drift.json", body)
        world.reloader.on_disk = "ffffffffffff"
        assert (await world.get("/admin/drift"))[1]["drift"] is True


@pytest.mark.parametrize(
    ("failure", "status"), [(ConfigUnreadable(FILE, "permission denied"), 500), (ReloadUnavailable("no baseline"), 503)]
)
async def test_drift_that_cannot_be_told(failure: SbproxyError, status: int) -> None:
    async with admin_world() as world:
        world.reloader.failure = failure
        got, body = await world.get("/admin/drift")
        assert got == status
        assert "secret-folder" not in body["error"]


async def test_metrics_mirror() -> None:
    async with admin_world() as world:
        world.observer.finished(request_record())
        async with world.call("GET", "/metrics", ADMIN) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            text = await answer.text()
        assert 'sbproxy_requests_total{hostname="localhost",method="POST",status="200"} 1.0' in text
        assert 'sbproxy_model_host_queued_requests{deployment="local-qwen"} 2.0' in text
