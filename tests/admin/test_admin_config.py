"""``/admin/config`` (document 2, "GET, PUT /admin/config"): the routes, then the daemon's own file and transaction."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from sbproxy.api.config import ConfigAnswer
from sbproxy.api.control import ReloadAnswer
from sbproxy.client import AdminClient
from sbproxy.errors import SbproxyError
from sbproxy.errors.admin import ConfigMoved, ReloadUnavailable
from sbproxy.errors.client import DaemonRefused
from sbproxy.errors.config import ConfigInvalid, ConfigNotWritten, ConfigUnreadable, Problem, RestartRequired
from sbproxy.errors.modelhost import InsufficientMemory
from support.admin_world import ADMIN, VIEWER, AdminWorld, admin_world
from support.snapshot import check_json_snapshot

FILE = "/etc/secret-folder/sb.yml"
YAML = {"Content-Type": "application/yaml"}
TEXT = "proxy:\n  http_bind_port: 8080\n"


async def put(world: AdminWorld, body: bytes | str = TEXT, path: str = "/admin/config", **options: Any) -> Any:
    headers = {**YAML, **options.pop("headers", {})}
    method = options.pop("method", "PUT")
    async with world.call(method, path, options.pop("who", ADMIN), data=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_get_tells_text_and_revision() -> None:
    async with admin_world() as world:
        status, body = await world.get("/admin/config")
        assert (status, body) == (200, {"yaml": TEXT, "revision": "abc123abc123"})
        assert ConfigAnswer.model_validate(body).revision == "abc123abc123"
        headers = await world.log_in(VIEWER)
        assert (await world.get("/admin/config", None, headers=headers))[0] == 200
        assert (await world.get("/admin/config", None))[0] == 401
        assert (await world.get("/admin/config?if_match=x"))[0] == 400


@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_put_stores_and_applies(method: str, caplog: pytest.LogCaptureFixture) -> None:
    async with admin_world() as world:
        with caplog.at_level(logging.INFO, "sbproxy.admin.audit"):
            status, body = await put(world, method=method, path="/admin/config?if_match=abc123abc123")
        assert status == 200
        check_json_snapshot("api/reload.json", body)
        assert ReloadAnswer.model_validate(body).fully_applied
        (new,) = world.reloader.written
        assert (new.text, new.if_match) == (TEXT, "abc123abc123")
        assert "8080" not in repr(new)
        told = [record for record in caplog.records if getattr(record, "action", "") == "config_replace"]
        (line,) = [record.__dict__ for record in told]
        assert (line["operator"], line["outcome"]) == ("admin", "replaced")
        assert (line["prior_revision"], line["next_revision"]) == ("abc123abc123", "abc123abc123")


async def test_a_read_only_operator_may_not_write() -> None:
    async with admin_world() as world:
        headers = await world.log_in(VIEWER)
        status, body = await put(world, who=None, headers=headers)
        assert (status, body) == (403, {"error": "forbidden: read-only operator cannot perform this action"})
        assert world.reloader.written == []


@pytest.mark.parametrize(
    ("body", "path", "reason"),
    [
        (b"", "/admin/config", "the body is empty; expected the whole sb.yml"),
        (b" \n", "/admin/config", "the body is empty; expected the whole sb.yml"),
        (b"a: \xff", "/admin/config", "the body is not UTF-8 text (line 1); expected the whole sb.yml"),
        (b"a: 1", "/admin/config?if_matches=x", "unknown query parameter 'if_matches'; known are if_match"),
        (b"a: 1", "/admin/config?if_match=", "query parameter 'if_match' must be one revision, as GET"),
        (b"a: 1", "/admin/config?if_match=a&if_match=b", "query parameter 'if_match' must be one revision, as GET"),
    ],
)
async def test_put_refuses_what_it_cannot_read(body: bytes, path: str, reason: str) -> None:
    async with admin_world() as world:
        status, answer = await put(world, body, path)
        assert status == 400
        assert answer["error"].startswith(reason)
        assert world.reloader.written == []


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/x-www-form-urlencoded"])
async def test_put_is_yaml(kind: str) -> None:
    async with admin_world() as world:
        status, answer = await put(world, headers={"Content-Type": kind})
        assert status == 415
        assert answer["error"] == "a request body must be YAML; send it with Content-Type: application/yaml"
        for other in ("application/x-yaml", "text/yaml", "application/yaml; charset=utf-8"):
            assert (await put(world, headers={"Content-Type": other}))[0] == 200
        # Only this route reads it.
        assert (await put(world, path="/admin/reload", method="POST"))[0] == 415


async def test_a_body_is_bounded() -> None:
    async with admin_world() as world:
        status, answer = await put(world, b"# " + b"x" * (512 * 1024))
        assert (status, answer["code"]) == (413, "request_body_too_large")


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (ConfigInvalid(FILE, (Problem(FILE, "proxy.prt", "unknown key", 2, near="port"),)), 400, "config_invalid"),
        (RestartRequired(("proxy.http_bind_port",)), 400, "restart_required"),
        (InsufficientMemory("a", 8, 1, 1, 1, 11, 4, "cpu"), 400, "insufficient_capacity"),
        (ConfigMoved("a", "b"), 409, None),
        (ReloadUnavailable("no file"), 503, "reload_unavailable"),
        (ConfigNotWritten(FILE, "No space left on device"), 500, "config_not_written"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, SbproxyError) else None,
)
async def test_refusals(failure: SbproxyError, status: int, code: str | None) -> None:
    async with admin_world() as world:
        world.reloader.failure = failure
        got, body = await put(world)
        assert (got, body.get("code"), body.get("reason_code")) == (status, code, code)
        assert "secret-folder" not in str(body)
        assert world.reloader.written == []


async def test_every_finding_is_told_with_its_place() -> None:
    async with admin_world() as world:
        problems = (Problem(FILE, "proxy.prt", "unknown key", 2, near="port"), Problem(FILE, "", "no such thing", 7))
        world.reloader.failure = ConfigInvalid(FILE, problems)
        _, body = await put(world)
        assert body["problems"] == [
            {"file": "sb.yml", "path": "proxy.prt", "reason": "unknown key", "line": 2, "near": "port"},
            {"file": "sb.yml", "path": "", "reason": "no such thing", "line": 7, "near": None},
        ]
        assert body["error"].splitlines()[1] == "sb.yml:7: no such thing"


async def test_one_reload_at_a_time() -> None:
    async with admin_world() as world:
        world.reloader.hold.clear()
        first = asyncio.create_task(world.post("/admin/reload"))
        for _ in range(500):
            if world.reloader._running:
                break
            await asyncio.sleep(0.01)
        status, body = await put(world)
        assert (status, body["code"]) == (409, "reload_in_flight")
        world.reloader.hold.set()
        assert (await first)[0] == 200


async def test_an_unreadable_file() -> None:
    async with admin_world() as world:
        world.reloader.failure = ConfigUnreadable(FILE, "Permission denied")
        status, body = await world.get("/admin/config")
        assert (status, body["error"]) == (500, "sb.yml: Permission denied")


async def test_the_client_speaks_it() -> None:
    async with admin_world() as world, AdminClient(str(world.server.make_url("/")), *ADMIN) as client:
        assert (await client.config()).yaml == TEXT
        assert (await client.replace_config(TEXT.encode(), if_match="abc")).config_revision == "abc123abc123"
        assert [(new.text, new.if_match) for new in world.reloader.written] == [(TEXT, "abc")]
        world.reloader.failure = ConfigMoved("abc", "def")
        with pytest.raises(DaemonRefused) as refused:
            await client.replace_config(TEXT.encode())
        assert (refused.value.status, refused.value.reason_code) == (409, None)
