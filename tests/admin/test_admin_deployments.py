"""``PUT`` and ``GET /admin/model-host/deployments``: each status and code of document 1 and contracts section 49."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from sbproxy.admin.ports import DesiredMap
from sbproxy.errors import SbproxyError, artifacts, catalog, engines, modelhost
from sbproxy.errors.admin import AuthorityReadOnly
from sbproxy.modelhost.core.desired_document import DeploymentDraft
from support.admin_world import ADMIN, AS_JSON, DIGEST, VIEWER, AdminWorld, admin_world

PATH = "/admin/model-host/deployments"
BODY = {"expected_revision": 1, "deployments": {"new": {"model": "one", "cold_start": "wait"}}}


async def put(world: AdminWorld, body: Any = BODY, who: tuple[str, str] | None = ADMIN) -> tuple[int, Any]:
    world.host.state = DesiredMap("admin_managed", world.host.state.deployments, 1, DIGEST)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with world.call("PUT", PATH, who, data=data, headers=AS_JSON) as answer:
        return answer.status, await answer.json()


async def test_a_replacement_is_answered_with_its_plan() -> None:
    async with admin_world() as world:
        assert await put(world) == (
            200,
            {
                "schema_version": 1,
                "revision": 2,
                "content_digest": DIGEST,
                "plan": {"added": ["new"], "changed": [], "removed": [], "preserved": ["local-qwen"]},
            },
        )
        (seen,) = world.host.replacements
        assert seen.expected_revision == 1
        assert seen.deployments == {"new": DeploymentDraft(model="one", cold_start="wait")}


REFUSALS: list[tuple[SbproxyError, int, str, dict[str, Any]]] = [
    (AuthorityReadOnly("file_managed"), 403, "authority_read_only", {}),
    (modelhost.InvalidDesired("a", "replicas", "too many"), 400, "invalid_desired", {}),
    (catalog.UnknownModel("one"), 400, "unknown_catalog_model", {}),
    (catalog.UnknownVariant("one", "q9", ("q4",)), 400, "unknown_catalog_variant", {}),
    (
        modelhost.RevisionConflict(1, 4),
        409,
        "revision_conflict",
        {"expected_revision": 1, "actual_revision": 4},
    ),
    (
        modelhost.RevisionConflict(3, None),
        409,
        "revision_conflict",
        {"expected_revision": 3, "actual_revision": None},
    ),
    (modelhost.InsufficientMemory("a", 1, 1, 1, 1, 4, 2, "cpu"), 422, "insufficient_capacity", {}),
    (modelhost.AdmissionRejected("a", "draining"), 422, "draining", {}),
    (modelhost.AdmissionRejected("a", "crash_loop"), 422, "crash_loop", {}),
    (modelhost.FoundationChanged("engines", ("a",)), 422, "prepare_failed", {}),
    (engines.EngineBlocked("vllm", "no image"), 422, "engine_blocked", {}),
    (engines.EngineIncompatible("vllm", "no CUDA"), 422, "engine_incompatible", {}),
    (engines.UnsafeArgument("vllm", "--x", "no"), 422, "unsafe_argument", {}),
    (catalog.NoCompatibleVariant("one", ()), 422, "engine_incompatible", {}),
    (catalog.IncompleteCatalogV2("one", "files"), 422, "prepare_failed", {}),
    (artifacts.SizeMismatch("f", 1, 2), 422, "prepare_failed", {}),
    (artifacts.DigestMismatch("f", "aa", "bb"), 422, "prepare_failed", {}),
    (artifacts.ManualArtifactMissing("one:q4"), 422, "prepare_failed", {}),
    (artifacts.PickleRefused("one:q4"), 422, "prepare_failed", {}),
    (
        modelhost.RuntimeCommitFailed(2, DIGEST),
        502,
        "runtime_commit_failed",
        {"durable_state_advanced": True, "revision": 2, "content_digest": DIGEST},
    ),
]


@pytest.mark.parametrize(("failure", "status", "code", "extra"), REFUSALS, ids=lambda each: type(each).__name__)
async def test_refusals(failure: SbproxyError, status: int, code: str, extra: dict[str, Any]) -> None:
    async with admin_world() as world:
        world.host.failure = failure
        assert await put(world) == (status, {"error": str(failure), "code": code, "reason_code": code, **extra})


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (modelhost.DesiredStoreFailed("/secret/desired.sqlite3", "disk is full"), "store_failed"),
        (artifacts.CacheCorrupt("one:q4", "/secret/blob"), "prepare_infrastructure_failed"),
        (artifacts.StoreUnusable("/secret/cache", "no"), "prepare_infrastructure_failed"),
        (modelhost.JobStoreUnusable("/secret/jobs", "no"), "prepare_infrastructure_failed"),
        (engines.EngineLaunchFailed("llama_cpp", "crash", "/secret/engine"), "engine_launch_failed"),
        (engines.EngineAcquisitionFailed("llama_cpp", "wheel", "/secret"), "engine_acquisition_failed"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_failures_of_the_machine_keep_their_detail_in_the_log(
    failure: SbproxyError, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with admin_world() as world:
        world.host.failure = failure
        status, body = await put(world)
        assert (status, body["code"], body["reason_code"]) == (502, code, code)
        assert "secret" not in str(body)
        assert "durable_state_advanced" not in body
        assert "/secret" in caplog.text
        if code == "store_failed":
            assert (await world.get(PATH))[0] == 502


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "missing"),
        (b"{", "JSON"),
        ({"deployments": {}}, "expected_revision"),
        ({"expected_revision": None, "deployments": {"a": {"model": "one"}}}, "cold_start"),
        (b'{"expected_revision": null, "deployments": {"a": {}, "a": {}}}', "twice"),
        ({"expected_revision": 1 << 53, "deployments": {}}, "9007199254740991"),
    ],
)
async def test_bad_bodies_reach_nobody(body: Any, named: str) -> None:
    async with admin_world() as world:
        status, said = await put(world, body)
        assert (status, said["code"], said["reason_code"]) == (400, "invalid_body", "invalid_body")
        assert named in said["error"]
        assert world.host.replacements == []


async def test_the_authority_is_looked_at_before_the_body() -> None:
    async with admin_world() as world, world.call("PUT", PATH, ADMIN, data=b"{", headers=AS_JSON) as answer:
        assert answer.status == 403
        assert (await answer.json())["code"] == "authority_read_only"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_512_kib_is_refused(chunked: bool) -> None:
    async def pieces() -> Any:
        for _ in range(600):
            yield b" " * 1024

    async with admin_world() as world:
        world.host.state = DesiredMap("admin_managed", {}, None)
        data: Any = pieces() if chunked else b" " * (512 * 1024 + 1)
        async with world.call("PUT", PATH, ADMIN, data=data, headers=AS_JSON) as answer:
            assert answer.status == 413
            assert (await answer.json())["code"] == "request_body_too_large"
        assert world.host.replacements == []


@pytest.mark.parametrize("who", [None, VIEWER])
async def test_only_an_admin_replaces(who: tuple[str, str] | None) -> None:
    async with admin_world() as world:
        assert (await put(world, who=who))[0] in (401, 403)
        assert world.host.replacements == []


@pytest.mark.parametrize(
    ("failure", "outcome", "status"),
    [(None, "replaced", "200"), (modelhost.RuntimeCommitFailed(2, DIGEST), "runtime_commit_failed", "502")],
)
async def test_what_became_durable_is_audited(
    failure: SbproxyError | None, outcome: str, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sbproxy.admin.audit")
    async with admin_world() as world:
        world.host.failure = failure
        await put(world)
    change, request = [vars(record) for record in caplog.records if record.name == "sbproxy.admin.audit"]
    told = {
        "operator": ADMIN[0],
        "role": "admin",
        "method": "PUT",
        "route": PATH,
        "outcome": outcome,
        "action": "model_deployments_replace",
        "source_mode": "admin_managed",
        "prior_revision": 1,
        "next_revision": 2,
        "content_digest": DIGEST,
        "deployment_count": 1,
    }
    assert {name: change[name] for name in told} == told
    assert request["outcome"] == status
    assert "action" not in request


async def test_a_refused_replacement_leaves_the_plain_audit_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sbproxy.admin.audit")
    async with admin_world() as world:
        world.host.failure = modelhost.RevisionConflict(1, 4)
        await put(world)
    (line,) = [vars(record) for record in caplog.records if record.name == "sbproxy.admin.audit"]
    assert line["outcome"] == "409"
