"""``/admin/model-host/*`` without jobs: bodies and statuses of contracts sections 17 to 19."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sbproxy.admin.ports import DesiredMap, Inventory
from sbproxy.admin.views import local_serving
from sbproxy.api.model_host import CatalogAnswer, DeploymentsAnswer, FilesAnswer, HostStatus
from sbproxy.errors.engines import EngineLaunchFailed
from sbproxy.errors.modelhost import AdmissionRejected, InsufficientMemory, ResetRefused
from sbproxy.modelhost.core.status import StatusRow
from support.admin_world import ADMIN, AS_JSON, admin_world, row, small_catalog, ulid
from support.snapshot import check_json_snapshot

PREFIX = "/admin/model-host"
BODY = {"deployment": "local-qwen"}
ACTIONS = ["load", "stop", "drain", "evict", "reset"]


@pytest.mark.parametrize(
    ("path", "message"),
    [("catalog", CatalogAnswer), ("deployments", DeploymentsAnswer), ("status", HostStatus), ("files", FilesAnswer)],
)
async def test_shapes(path: str, message: type[Any]) -> None:
    async with admin_world() as world:
        status, body = await world.get(f"{PREFIX}/{path}")
        assert status == 200
        check_json_snapshot(f"api/model-host-{path}.json", body)
        assert message.model_validate(body).model_dump(mode="json") == body


async def test_catalog_texts_are_cut_and_no_source_or_token_is_told() -> None:
    async with admin_world() as world:
        document = small_catalog()
        (model,) = document.models.values()
        long = replace(model, license="l" * 5000, family="quiet\x1b[31mred\u202e")
        world.host.document = replace(document, models={model.id: long})
        _, body = await world.get(f"{PREFIX}/catalog")
        entry = body["models"]["qwen2.5-0.5b-instruct"]
        assert len(entry["license"]) == 256
        assert entry["family"] == "quietred"
        assert "hf_x" not in str(body)
        assert "Org/Repo" not in str(body)


async def test_status_of_an_idle_host() -> None:
    async with admin_world() as world:
        world.host.rows = []
        _, body = await world.get(f"{PREFIX}/status")
        assert (body["serving"], body["deployments"]) == (False, [])
        assert body["local_serving"]["ready"] is False
        assert body["local_serving"]["blockers"] == ["no_deployments"]


@pytest.mark.parametrize(
    ("rows", "ready", "blockers"),
    [
        ([row()], True, []),
        ([row(state="configured", driver_availability="acquirable")], True, []),
        ([row(state="failed", reason_code="crash_loop"), row("other")], True, []),
        ([row(state="failed", reason_code="crash_loop")], False, ["crash_loop"]),
        ([row(state="failed", reason_code=None)], False, ["failed"]),
        (
            [row(driver_availability="blocked"), row("b", driver_availability="incompatible")],
            False,
            ["engine_blocked", "engine_incompatible"],
        ),
    ],
)
def test_local_serving_names_what_is_in_the_way(rows: list[StatusRow], ready: bool, blockers: list[str]) -> None:
    answer = local_serving(rows)
    assert (answer.ready, answer.blockers) == (ready, blockers)


async def test_errors_of_other_programs_are_scrubbed_and_masked() -> None:
    async with admin_world() as world:
        world.host.rows = [row(last_error="\x1b]0;title\x07boom Authorization: Bearer abcdef123456 " + "x" * 5000)]
        _, body = await world.get(f"{PREFIX}/status")
        error = body["deployments"][0]["last_error"]
        assert error.startswith("boom Authorization: [REDACTED]")
        assert "abcdef123456" not in error
        assert len(error) <= 1024


async def test_files_count_only_ready_rows_as_resident() -> None:
    async with admin_world() as world:
        world.host.rows = [row(state="failed")]
        _, body = await world.get(f"{PREFIX}/files")
        assert [entry["resident"] for entry in body["artifacts"]] == [False]
        assert body["total_bytes"] == 491_400_032
        world.host.files = Inventory(None, [])
        assert await world.get(f"{PREFIX}/files") == (
            200,
            {"schema_version": 1, "cache_root": None, "total_bytes": 0, "artifacts": []},
        )


@pytest.mark.parametrize(
    ("action", "asked"), [("load", "load"), ("stop", "stop"), ("drain", "drain"), ("evict", "drain")]
)
async def test_actions_are_accepted_as_jobs(action: str, asked: str) -> None:
    async with admin_world() as world:
        status, body = await world.post(f"{PREFIX}/{action}", BODY)
        assert status == 202
        assert body == {
            "schema_version": 1,
            "deployment": "local-qwen",
            "state": "queued",
            "job_id": ulid(42),
            "poll_url": f"{PREFIX}/jobs/{ulid(42)}",
        }
        assert world.host.calls == [(asked, "local-qwen")]


async def test_reset_is_synchronous() -> None:
    async with admin_world() as world:
        assert await world.post(f"{PREFIX}/reset", BODY) == (
            200,
            {"deployment": "local-qwen", "state": "configured", "job_id": ulid(42)},
        )


async def test_the_older_key_still_names_a_deployment() -> None:
    async with admin_world() as world:
        assert (await world.post(f"{PREFIX}/load", {"model": "local-qwen"}))[0] == 202


MISSING = "missing 'deployment' (or legacy 'model')"
INVALID = "invalid JSON body; expected {deployment}"


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", INVALID),
        (b"{", INVALID),
        (b"[1]", INVALID),
        (b"null", INVALID),
        (b"\xff", INVALID),
        (b"{}", MISSING),
        (b'{"deployment": ""}', MISSING),
        (b'{"deployment": null}', MISSING),
        (b'{"model": ""}', MISSING),
        (b'{"deployment": 7}', None),
        (b'{"deployment": "local-qwen", "force": true}', None),
        (b'{"deployment": "local-qwen", "model": "local-qwen"}', None),
        (b'{"deployment": "%s"}' % (b"a" * 200), None),
    ],
)
async def test_bad_bodies(action: str, body: bytes, text: str | None) -> None:
    async with admin_world() as world:
        async with world.call("POST", f"{PREFIX}/{action}", ADMIN, data=body, headers=AS_JSON) as answer:
            said = await answer.json()
            assert answer.status == 400
            assert said["code"] == said["reason_code"] == "invalid_body"
            assert text is None or said["error"] == text
            assert len(said["error"]) < 300
        assert world.host.calls == []


MEMORY = InsufficientMemory("local-qwen", 1, 1, 1, 1, 4, 2, "cpu")


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("failure", "status", "reason"),
    [
        (AdmissionRejected("local-qwen", "draining"), 409, "draining"),
        (AdmissionRejected("local-qwen", "crash_loop"), 409, "crash_loop"),
        (ResetRefused("local-qwen", "ready"), 409, "reset_refused"),
        (MEMORY, 409, "insufficient_capacity"),
    ],
)
async def test_refusals_carry_their_reason(action: str, failure: Exception, status: int, reason: str) -> None:
    async with admin_world() as world:
        world.host.failure = failure
        assert await world.post(f"{PREFIX}/{action}", BODY) == (
            status,
            {"error": str(failure), "code": reason, "reason_code": reason},
        )


@pytest.mark.parametrize(("action", "operation"), [("load", "load"), ("stop", "stop"), ("evict", "stop")])
async def test_infrastructure_failures_keep_their_detail_in_the_log(
    action: str, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with admin_world() as world:
        world.host.failure = EngineLaunchFailed("llama_cpp", "crash", "/opt/private/engine died")
        assert await world.post(f"{PREFIX}/{action}", BODY) == (
            502,
            {
                "error": f"{operation} failed; inspect server logs",
                "code": "engine_launch_failed",
                "reason_code": "engine_launch_failed",
            },
        )
        assert "/opt/private/engine died" in caplog.text


async def test_unknown_deployments_are_a_404_with_near_names() -> None:
    async with admin_world() as world:
        status, body = await world.post(f"{PREFIX}/load", {"deployment": "local-qwem"})
        assert (status, body["reason_code"]) == (404, "unknown_deployment")
        assert "local-qwen" in body["error"]


async def test_the_map_cannot_be_replaced_under_file_management() -> None:
    async with (
        admin_world() as world,
        world.call("PUT", f"{PREFIX}/deployments", ADMIN, json={"deployments": {}}) as answer,
    ):
        body = await answer.json()
        assert answer.status == 403
        assert body["code"] == body["reason_code"] == "authority_read_only"
        assert "proxy.model_host.deployments" in body["error"]
        assert "/admin/reload" in body["error"]


async def test_the_write_boundary_is_told() -> None:
    async with admin_world() as world:
        world.host.state = DesiredMap("admin_managed", {}, revision=None)
        _, body = await world.get(f"{PREFIX}/deployments")
        assert body == {
            "schema_version": 1,
            "authority": "admin_managed",
            "read_only": False,
            "revision": None,
            "content_digest": None,
            "deployments": {},
        }
