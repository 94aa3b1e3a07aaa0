"""``/admin/keys`` and ``/admin/credentials`` over a real key plane: shapes, statuses, conflicts, and no secret out."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sbproxy.config.core.key_management import KeyManagementConfig
from sbproxy.errors.governance import GovernanceUnavailable
from sbproxy.errors.keys import KeyStoreFailed
from sbproxy.keys.core.record import KeyRecord
from sbproxy.keys.plane import KeyPlane
from sbproxy.keys.ports import KeyAdministration
from sbproxy.observe.core.redact import Redactor
from sbproxy.observe.log_output import configure_logging
from support.admin_world import ADMIN, VIEWER, AdminWorld, admin_world
from support.snapshot import check_json_snapshot

KEYS = "/admin/keys"
CREDENTIALS = "/admin/credentials"
CANARY = "sk-upstream-canary-998877"
UNKNOWN = f"{KEYS}/ffffffffffffffff"


@dataclass
class Counters:
    """Usage of one key; ``down`` is a backend that does not answer."""

    down: bool = False
    asked: list[KeyRecord] = field(default_factory=list)

    async def snapshot(self, record: KeyRecord) -> Mapping[str, Any]:
        self.asked.append(record)
        if self.down:
            raise GovernanceUnavailable("redis is gone")
        return {"requests": {"used": 3}}


@dataclass
class Keys:
    web: AdminWorld
    plane: KeyPlane
    usage: Counters

    async def call(self, method: str, path: str, body: Any = None, who: tuple[str, str] = ADMIN) -> tuple[int, Any]:
        options = {} if body is None else {"json": body}
        async with self.web.call(method, path, who, **options) as answer:
            return answer.status, await answer.json()

    async def mint(self, **policy: Any) -> tuple[str, dict[str, Any]]:
        status, body = await self.call("POST", KEYS, policy)
        assert status == 201, body
        return body["token"], body["key"]


@asynccontextmanager
async def keys_world(folder: Path, **said: Any) -> AsyncIterator[Keys]:
    config = KeyManagementConfig.model_validate({"enabled": True, **said})
    plane = await KeyPlane.open(config, {}, folder, {})
    try:
        assert plane.administration is not None
        usage = Counters()
        async with admin_world(keys=replace(plane.administration, usage=usage)) as web:
            yield Keys(web, plane, usage)
    finally:
        await plane.close()


@pytest.fixture
async def keys(tmp_path: Path) -> AsyncIterator[Keys]:
    async with keys_world(tmp_path) as world:
        yield world


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    written = io.StringIO()
    configure_logging(logging.DEBUG, "json", Redactor(), written)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)


ROUTES = [
    ("GET", KEYS), ("POST", KEYS), ("GET", UNKNOWN), ("PATCH", UNKNOWN), ("DELETE", UNKNOWN),
    ("GET", f"{UNKNOWN}/usage"),
    ("POST", f"{UNKNOWN}/effective-policy/preview"), ("POST", f"{UNKNOWN}/revoke"), ("POST", f"{UNKNOWN}/block"),
    ("POST", f"{UNKNOWN}/unblock"), ("POST", f"{UNKNOWN}/rotate"), ("GET", CREDENTIALS), ("POST", CREDENTIALS),
    ("GET", f"{CREDENTIALS}/x"), ("PATCH", f"{CREDENTIALS}/x"), ("DELETE", f"{CREDENTIALS}/x"),
    ("POST", f"{CREDENTIALS}/x/revoke"), ("POST", f"{CREDENTIALS}/x/block"), ("POST", f"{CREDENTIALS}/x/unblock"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_without_key_management(method: str, path: str) -> None:
    async with admin_world() as world, world.call(method, path, ADMIN) as answer:
        assert answer.status == 409
        assert (await answer.json())["error"] == "key_management is not enabled"


async def test_the_schema_is_served_all_the_same() -> None:
    async with admin_world() as world:
        async with world.call("GET", f"{KEYS}/policy-schema", ADMIN) as answer:
            assert answer.status == 200
            check_json_snapshot("api/key-policy-schema.json", await answer.json())
        status, body = await world.post("/admin/cache/key-policy/evict", {})
        assert (status, body["error"]) == (409, "dynamic key plane not enabled")


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if "ffff" in route[1] or "/x" in route[1]])
async def test_what_is_not_there_is_404(keys: Keys, method: str, path: str) -> None:
    body = None if method in ("GET", "DELETE") else {"expected_revision": 1} if path == UNKNOWN else {}
    status, answer = await keys.call(method, path, body)
    assert status == 404, answer


async def test_a_minted_key_as_it_is_shown(keys: Keys) -> None:
    token, key = await keys.mint(name="checkout", tags=["team:checkout"], max_budget_usd=25, allowed_models=["m"])
    shown = {
        **key,
        "key_id": "0123456789abcdef",
        "created_at": "2026-07-01T00:00:00Z",
        "updated_at": "2026-07-01T00:00:00Z",
    }
    check_json_snapshot("api/key.json", shown)
    assert token.startswith(f"sbp_{key['key_id']}_")
    status, body = await keys.call("GET", f"{KEYS}/{key['key_id']}")
    assert (status, body) == (200, {"key": key})
    assert await keys.call("GET", KEYS) == (200, {"keys": [key]})
    # Document 2 omits these while they are unset, and shows them when they are set.
    for name in ("max_tokens_per_minute", "priority", "route_to_model", "compression_profile", "inject_mcp"):
        assert name not in key
    assert key["budget"] == {"max_cost_usd": 25.0}
    _, full = await keys.mint(
        max_tokens_per_minute=5, priority="batch", route_to_model="r", max_budget_tokens=7, tenant="t"
    )
    assert (full["max_tokens_per_minute"], full["priority"], full["route_to_model"]) == (5, "batch", "r")
    assert full["budget"] == {"max_tokens": 7}
    assert full["policy_digest"].startswith("sha256:")
    assert key["policy_digest"] is None


@pytest.mark.parametrize(
    "body",
    [
        {"expected_revision": 1}, {"naem": "x"}, {"allowed_models": None}, {"max_requests_per_minute": -1},
        {"max_requests_per_minute": 1.5}, {"max_requests_per_minute": True}, {"max_budget_usd": -0.1},
        {"priority": "urgent"}, {"tags": ["x" * 513]}, {"tags": ["x"] * 129}, {"expires_at": "soon"},
        {"inject_mcp": {"ref": "x"}}, {"compression_profile": "x"}, {"principal_selectors": [{}]},
        {"principal_selectors": [{"nobody": "x"}]}, {"metadata": {"a": 1}}, {"credential_id": "nobody"}, [], "x",
    ],
)  # fmt: skip
async def test_what_a_key_cannot_be(keys: Keys, body: Any) -> None:
    status, answer = await keys.call("POST", KEYS, body)
    assert status == 400
    assert set(answer) == {"error", "code", "reason_code"}
    assert await keys.call("GET", KEYS) == (200, {"keys": []})


async def test_patch(keys: Keys) -> None:
    _, key = await keys.mint(name="a", allowed_tools=["t"], max_requests_per_minute=5)
    path = f"{KEYS}/{key['key_id']}"
    for wrong in ({}, {"name": "b"}, {"expected_revision": 0}, {"expected_revision": 1, "naem": "b"}):
        assert (await keys.call("PATCH", path, wrong))[0] == 400
    status, body = await keys.call("PATCH", path, {"expected_revision": 1, "name": None, "allowed_tools": []})
    assert status == 200
    after = body["key"]
    assert (after["policy_revision"], after["name"], after["allowed_tools"]) == (2, None, [])
    assert after["max_requests_per_minute"] == 5
    status, body = await keys.call("PATCH", path, {"expected_revision": 1, "name": "late"})
    assert (status, body["error"]) == (409, "key policy revision conflict")
    assert (body["key_id"], body["expected_revision"], body["current_revision"]) == (key["key_id"], 1, 2)


async def test_lifecycle_and_its_end(keys: Keys) -> None:
    _, key = await keys.mint()
    path = f"{KEYS}/{key['key_id']}"
    for action, expected in (("block", "blocked"), ("unblock", "active"), ("block", "blocked"), ("revoke", "revoked")):
        status, body = await keys.call("POST", f"{path}/{action}")
        assert (status, body["key"]["status"]) == (200, expected)
    assert body["key"]["policy_revision"] == 5
    changes = [("POST", f"{path}/{action}", {}) for action in ("block", "unblock", "revoke", "rotate")]
    for method, at, sent in [*changes, ("PATCH", path, {"expected_revision": 5})]:
        status, body = await keys.call(method, at, sent)
        assert (status, body["error"], body["current_revision"]) == (409, "revoked key is terminal", 5)
    status, body = await keys.call("DELETE", path)
    assert (status, body) == (200, {"key_id": key["key_id"], "deleted": True})


async def test_an_expected_revision_is_compared_by_every_action(keys: Keys) -> None:
    _, key = await keys.mint()
    for action in ("block", "unblock", "revoke", "rotate"):
        status, body = await keys.call("POST", f"{KEYS}/{key['key_id']}/{action}", {"expected_revision": 9})
        assert (status, body["current_revision"]) == (409, 1)


async def test_rotate(keys: Keys) -> None:
    token, key = await keys.mint()
    path = f"{KEYS}/{key['key_id']}/rotate"
    status, body = await keys.call("POST", path)
    assert status == 200
    assert set(body) == {"token", "grace_expires_at", "key"}
    assert body["token"] != token
    # The key plane has the machine's clock, the admin application of this test its own.
    assert body["grace_expires_at"] is not None
    status, body = await keys.call("POST", path, {"grace_secs": 0})
    assert body["grace_expires_at"] is None
    assert body["key"]["rotation_pending"] is False
    assert (await keys.call("POST", path, {"grace_secs": -1}))[0] == 400


async def test_usage_and_a_backend_that_is_down(keys: Keys) -> None:
    _, key = await keys.mint()
    path = f"{KEYS}/{key['key_id']}/usage"
    assert await keys.call("GET", path) == (200, {"usage": {"requests": {"used": 3}}})
    assert keys.usage.asked[0].key_id == key["key_id"]
    keys.usage.down = True
    status, body = await keys.call("GET", path)
    assert (status, body["error"]) == (503, "governance backend unavailable")


async def test_preview(keys: Keys) -> None:
    _, key = await keys.mint(allowed_models=["m"], max_budget_tokens=10, expires_at="2100-01-01T00:00:00Z")
    path = f"{KEYS}/{key['key_id']}/effective-policy/preview"
    status, body = await keys.call("POST", path)
    assert status == 200
    assert set(body) == {"effective_policy", "policy_version", "decisions"}
    assert body["decisions"]["allowed"] is True
    sample = {
        "model": "x", "provider": "p", "tools": ["t"],
        "principal": {"team": "red", "roles": ["r"], "claims": {"a": "b"}},
        "origin_tenant_id": "o", "active_pii_rules": [], "prompt_injection_detected": False, "estimated_tokens": 5,
        "estimated_micro_usd": 1, "usage": {"total_tokens": 8}, "at": "2100-01-01T00:00:00Z",
    }  # fmt: skip
    decisions = (await keys.call("POST", path, sample))[1]["decisions"]
    found = {
        name: block["reason_code"]
        for name, block in decisions.items()
        if isinstance(block, dict) and "reason_code" in block
    }
    assert found == {
        "lifecycle": "expired", "tenant": "inherited", "model": "not_allowed", "provider": "allowed",
        "tools": "unrestricted", "principal": "unrestricted", "rate_limits": "unrestricted",
        "budget": "budget_exhausted", "priority": "default",
    }  # fmt: skip
    assert set(decisions["guardrails"]) == {"pii", "prompt_injection"}
    for wrong in ({"modle": "x"}, {"tools": ["x"] * 129}, {"model": "ü" * 257}, {"at": "now"}, {"usage": {"x": 1}},
                  {"tools": ["y" * 500] * 128, "model": "z", "claims": "z" * 70_000}):  # fmt: skip
        assert (await keys.call("POST", path, wrong))[0] == 400


async def test_evicting_cached_policies(keys: Keys) -> None:
    assert await keys.call("POST", "/admin/cache/key-policy/evict", {}) == (200, {"evicted": "all"})
    assert await keys.call("POST", "/admin/cache/key-policy/evict", {"id": "x"}) == (200, {"evicted": "x"})


async def test_credentials(keys: Keys) -> None:
    for wrong in ({"provider": "p"}, {"secret": "s"}, {"provider": "p", "secret": "s", "vault_ref": "env:X"},
                  {"provider": "p", "vault_ref": "vault://x"}, {"provider": "p", "vault_ref": "literal"},
                  {"provider": "p", "secret": "s", "header": "Host"}, {"provider": "p", "secret": "ü"}):  # fmt: skip
        status, body = await keys.call("POST", CREDENTIALS, wrong)
        assert status == 400, wrong
    status, body = await keys.call("POST", CREDENTIALS, {"provider": "openai", "name": "prod", "secret": CANARY})
    assert status == 201
    sealed = body["credential"]
    assert (sealed["storage"], "vault_ref" in sealed) == ("encrypted", False)
    times = {"id": "cred_0123456789abcdef", "created_at": "2026-07-01T00:00:00Z", "updated_at": "2026-07-01T00:00:00Z"}
    check_json_snapshot("api/credential.json", {**sealed, **times})
    sent = {"provider": "anthropic", "vault_ref": "env:X", "header": "x-api-key", "scheme": ""}
    referenced = (await keys.call("POST", CREDENTIALS, sent))[1]["credential"]
    assert (referenced["storage"], referenced["vault_ref"], referenced["scheme"]) == ("vault_ref", "env:X", "")
    listed = (await keys.call("GET", CREDENTIALS))[1]["credentials"]
    assert sorted(listed, key=lambda one: one["provider"]) == [referenced, sealed]
    path = f"{CREDENTIALS}/{referenced['id']}"
    status, body = await keys.call("PATCH", path, {})
    assert (status, body["credential"]["vault_ref"]) == (200, "env:X")
    status, body = await keys.call("PATCH", path, {"secret": CANARY, "name": "new", "tenant": "t"})
    assert (body["credential"]["storage"], body["credential"]["tenant_id"]) == ("encrypted", "t")
    for unchangeable in ("header", "scheme", "kind", "status"):
        assert (await keys.call("PATCH", path, {unchangeable: "x"}))[0] == 400
    # No terminal state: document 2 lets a revoked credential come back.
    for action, expected in (("revoke", "revoked"), ("block", "blocked"), ("unblock", "active")):
        status, body = await keys.call("POST", f"{path}/{action}")
        assert (status, body["credential"]["status"]) == (200, expected)
    _, key = await keys.mint(credential_id=referenced["id"])
    assert "credential_id" not in key
    status, body = await keys.call("DELETE", path)
    assert (status, body["code"]) == (409, "credential_in_use")
    await keys.call("DELETE", f"{KEYS}/{key['key_id']}")
    assert await keys.call("DELETE", path) == (200, {"id": referenced["id"], "deleted": True})


async def test_a_reader_changes_nothing(keys: Keys) -> None:
    _, key = await keys.mint()
    browser = await keys.web.log_in(VIEWER)
    for method, path in ROUTES:
        if method == "GET":
            continue
        path = path.replace("ffffffffffffffff", key["key_id"])
        async with keys.web.call(method, path, headers=browser, json={}) as answer:
            assert answer.status == 403, path
    async with keys.web.call("GET", KEYS, headers=browser) as answer:
        assert answer.status == 200


class _Failing:
    """A store that is gone: whatever is asked of it fails with its private address."""

    def __getattr__(self, name: str) -> Any:
        async def fail(*_: Any, **__: Any) -> None:
            raise KeyStoreFailed("/srv/private/keys.sqlite3", "disk I/O error")

        return fail


@pytest.mark.parametrize("path", [KEYS, UNKNOWN, CREDENTIALS, f"{CREDENTIALS}/x"])
async def test_a_store_that_fails_is_500_and_keeps_its_address(path: str) -> None:
    failing: Any = _Failing()
    async with admin_world(keys=KeyAdministration(failing, failing)) as world:
        status, body = await world.get(path)
        assert (status, body["code"]) == (500, "key_store_failed")
        assert "/srv/private" not in json.dumps(body)


async def test_every_change_is_audited_and_no_secret_leaves(keys: Keys, log: io.StringIO) -> None:
    said: list[Any] = []
    token, key = await keys.mint(name="before")
    path = f"{KEYS}/{key['key_id']}"
    _, rotated = await keys.call("POST", f"{path}/rotate")
    created = (await keys.call("POST", CREDENTIALS, {"provider": "openai", "secret": CANARY}))[1]["credential"]
    calls = [
        ("PATCH", path, {"expected_revision": 2, "name": "after"}), ("POST", f"{path}/block", {}),
        ("PATCH", f"{CREDENTIALS}/{created['id']}", {"secret": CANARY + "2"}),
        ("PATCH", f"{CREDENTIALS}/{created['id']}", {"secret": [CANARY]}),
        ("POST", CREDENTIALS, {"provider": "p", "secret": CANARY, "vault_ref": CANARY}),
        ("POST", CREDENTIALS, {"provider": "p", "vault_ref": CANARY}),
        ("GET", KEYS, None), ("GET", path, None), ("GET", CREDENTIALS, None),
        ("POST", f"{path}/effective-policy/preview", {}), ("POST", f"{path}/revoke", {}), ("DELETE", path, None),
    ]  # fmt: skip
    for method, at, body in calls:
        said.append(await keys.call(method, at, body))
    everything = json.dumps([said, rotated["key"], key]) + log.getvalue()
    record = await keys.plane.store.get_credential(created["id"])  # type: ignore[union-attr]
    assert record is not None
    secrets = [CANARY, token.rpartition("_")[2], rotated["token"].rpartition("_")[2]]
    for secret in secrets:
        assert secret not in everything
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    audited = [line for line in lines if line["target"] == "key_audit"]
    fields = [line.get("fields", line) for line in audited]
    assert [(entry["op"], entry["resource"]) for entry in fields] == [
        ("create", "key"), ("rotate", "key"), ("create", "credential"), ("update", "key"), ("block", "key"),
        ("update", "credential"), ("revoke", "key"), ("delete", "key"),
    ]  # fmt: skip
    assert {entry["actor"] for entry in fields} == {ADMIN[0]}
    assert json.loads(fields[3]["before"]) == {"policy_revision": 2, "name": "before"}
    assert json.loads(fields[3]["after"]) == {"policy_revision": 3, "name": "after"}
    assert fields[3]["id"] == key["key_id"]
