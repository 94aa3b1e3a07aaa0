"""The whole plane: minted keys live over restarts, seeds and static keys, credentials, and two daemons on one Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from sbproxy.config.core.findings import Finding
from sbproxy.config.core.key_management import KeyManagementConfig, StaticCredential
from sbproxy.config.core.key_rules import key_management_findings, static_key_findings
from sbproxy.errors.admin import InvalidBody
from sbproxy.errors.keys import (
    ConfiguredRecord,
    CredentialInUse,
    CredentialUnusable,
    KeyMaterialUnusable,
    KeyRevisionConflict,
    KeyRevoked,
    KeySettingInvalid,
    KeyStoreUnavailable,
    KeyTerminal,
    KeyUnknown,
    RotationRefused,
)
from sbproxy.keys.core.token import parse
from sbproxy.keys.crypto import FILE, key_material, seal, unseal
from sbproxy.keys.directory import Found, Known, Unresolved
from sbproxy.keys.plane import KeyPlane
from sbproxy.keys.redis_store import RedisBroadcast, redis_at
from support.redis_process import RedisProcess

HOST = "ai.local"
CANARY = "sk-upstream-canary-123456"
SEEDED = f"sbp_{'a' * 16}_{'b' * 64}"


def config(**said: Any) -> KeyManagementConfig:
    return KeyManagementConfig.model_validate({"enabled": True, **said}, strict=False)


@asynccontextmanager
async def plane(
    folder: Path, *, static: Any = None, environ: dict[str, str] | None = None, **said: Any
) -> AsyncIterator[KeyPlane]:
    opened = await KeyPlane.open(config(**said), static or {}, folder, environ or {})
    try:
        yield opened
    finally:
        await opened.close()


async def ask(it: KeyPlane, token: str, host: str = HOST) -> Found:
    found = it.directory.lookup(((b"authorization", f"Bearer {token}".encode()),), host, False)
    return await it.directory.resolve(found) if isinstance(found, Unresolved) else found


def desk(it: KeyPlane) -> Any:
    assert it.administration is not None
    return it.administration.keys


async def test_a_key_lives_from_its_minting_to_its_deletion(tmp_path: Path) -> None:
    async with plane(tmp_path) as it:
        done = await desk(it).mint({"name": "checkout", "allowed_models": ["m"], "max_budget_usd": 2.5})
        key_id = done.record.key_id
        assert parse(done.token) is not None
        known = await ask(it, done.token)
        assert isinstance(known, Known)
        assert (known.record.name, known.record.budget.max_cost_micros) == ("checkout", 2_500_000)
        changed = await desk(it).change(key_id, 1, {"name": "till"})
        assert (changed.record.policy_revision, changed.record.allowed_models) == (2, ("m",))
        again = await ask(it, done.token)
        assert isinstance(again, Known)
        assert again.record.name == "till", "the change shows on the next request"
        with pytest.raises(KeyRevisionConflict):
            await desk(it).change(key_id, 1, {"name": "late"})
        turned = await desk(it).rotate(key_id, None, 60)
        assert isinstance(await ask(it, done.token), Known)
        assert isinstance(await ask(it, turned.token), Known)
        await desk(it).act(key_id, "revoke", None)
        assert isinstance(await ask(it, turned.token), KeyRevoked)
        with pytest.raises(KeyTerminal):
            await desk(it).act(key_id, "unblock", None)
        await desk(it).delete_key(key_id)
        assert isinstance(await ask(it, turned.token), KeyUnknown)


async def test_keys_outlive_the_process_and_leave_no_secret_in_its_files(tmp_path: Path) -> None:
    async with plane(tmp_path) as it:
        minted = await desk(it).mint({})
        assert it.administration is not None
        await it.administration.credentials.create_credential({"provider": "openai"}, vault_ref=None, secret=CANARY)
    async with plane(tmp_path) as it:
        assert isinstance(await ask(it, minted.token), Known)
        files = [path for path in tmp_path.iterdir() if path.is_file()]
        assert {path.name for path in files} >= {FILE, "keys.sqlite3"}
        secret = minted.token.rpartition("_")[2]
        for path in files:
            assert path.stat().st_mode & 0o077 == 0, path
            assert secret.encode() not in path.read_bytes()
            assert CANARY.encode() not in path.read_bytes()


async def test_changes_without_an_expected_revision_all_land(tmp_path: Path) -> None:
    async with plane(tmp_path) as it:
        minted = await desk(it).mint({})
        key_id = minted.record.key_id
        done = await asyncio.gather(*(desk(it).act(key_id, "block", None) for _ in range(4)))
        assert sorted(one.record.policy_revision for one in done) == [2, 3, 4, 5]


async def test_revoking_wins_over_requests_in_flight(tmp_path: Path) -> None:
    async with plane(tmp_path) as it:
        minted = await desk(it).mint({})
        stop = asyncio.Event()

        async def use() -> None:
            while not stop.is_set():
                await ask(it, minted.token)
                it.directory.invalidate(None)
                await asyncio.sleep(0)

        users = [asyncio.create_task(use()) for _ in range(8)]
        await asyncio.sleep(0.05)
        await desk(it).act(minted.record.key_id, "revoke", None)
        after = [await ask(it, minted.token) for _ in range(20)]
        stop.set()
        await asyncio.gather(*users)
        assert all(isinstance(found, KeyRevoked) for found in after)


async def test_static_keys_and_their_policy(tmp_path: Path) -> None:
    entry = StaticCredential.model_validate(
        {
            "name": "team", "key": "static-key-of-the-team", "provider": "openai",
            "models": {"allow": ["m"], "deny": ["x"]},
            "attrs": {"project": "p", "team": "red", "budget": {"max_tokens": 5}},
            "policies": [{"type": "rate_limit", "rpm": 9}, {"type": "require_pii_redaction", "rules": ["email"]}],
        }
    )  # fmt: skip
    for enabled in (True, False):
        async with plane(tmp_path, static={HOST: [entry]}, enabled=enabled) as it:
            found = await ask(it, "static-key-of-the-team")
            assert isinstance(found, Known)
            record = found.record
            assert (record.key_id, record.source, record.max_requests_per_minute) == (f"{HOST}/team", "config", 9)
            assert (record.allowed_models, record.blocked_models, record.allowed_providers) == (
                ("m",),
                ("x",),
                ("openai",),
            )
            assert (record.budget.max_tokens, record.metadata, record.require_pii_redaction) == (
                5, {"team": "red"}, ("email",),
            )  # fmt: skip
            assert isinstance(await ask(it, "static-key-of-nobody!"), KeyUnknown)
            assert (await ask(it, "static-key-of-the-team", "other.local") is None) is not enabled
    twice = [entry, entry.model_copy(update={"name": "other"})]
    with pytest.raises(KeySettingInvalid, match="same key"):
        await KeyPlane.open(config(enabled=False), {HOST: twice}, tmp_path, {})


def seeds(**changes: Any) -> dict[str, Any]:
    key = {"id": "a" * 16, "key": SEEDED, "name": "seed", "credential_id": "main", **changes}
    return {"credentials": [{"id": "main", "provider": "openai", "secret": CANARY}], "keys": [key]}


async def test_seeds_are_planted_once_and_followed(tmp_path: Path) -> None:
    async with plane(tmp_path, seed=seeds()) as it:
        known = await ask(it, SEEDED)
        assert isinstance(known, Known)
        assert (known.record.source, known.record.policy_revision) == ("config", 1)
        with pytest.raises(ConfiguredRecord):
            await desk(it).change("a" * 16, 1, {"name": "x"})
        with pytest.raises(ConfiguredRecord):
            await desk(it).delete_key("a" * 16)
        turned = await desk(it).rotate("a" * 16, None, 0)
    async with plane(tmp_path, seed=seeds()) as it:
        assert isinstance(await ask(it, turned.token), Known), "a rotation outlives a restart"
        assert isinstance(await ask(it, SEEDED), KeyUnknown)
    async with plane(tmp_path, seed=seeds(name="renamed")) as it:
        assert (await desk(it).get_key("a" * 16)).name == "renamed"
        await desk(it).act("a" * 16, "revoke", None)
    async with plane(tmp_path, seed=seeds(name="again")) as it:
        assert isinstance(await ask(it, turned.token), KeyRevoked)


async def test_with_an_override_the_api_has_the_last_word(tmp_path: Path) -> None:
    for attempt in range(2):
        async with plane(tmp_path, seed=seeds(), allow_api_override=True) as it:
            if attempt == 0:
                await desk(it).change("a" * 16, 1, {"name": "by hand"})
            assert (await desk(it).get_key("a" * 16)).name == "by hand"


async def test_a_seeded_id_that_no_token_can_carry_is_not_rotated(tmp_path: Path) -> None:
    seed = {"keys": [{"id": "my-seed", "key": "sk-my-seed-0123456789abcdef"}]}
    async with plane(tmp_path, seed=seed) as it:
        with pytest.raises(RotationRefused):
            await desk(it).rotate("my-seed", None, 60)
        assert isinstance(await ask(it, "sk-my-seed-0123456789abcdef"), Known)


@pytest.mark.parametrize(
    "seed",
    [
        {"keys": [{"id": "a" * 16, "key": "not a token"}]},
        {"keys": [{"id": "c" * 16, "key": SEEDED}]},
        {"keys": [{"id": "a" * 16, "key": SEEDED, "credential_id": "nobody"}]},
        {"credentials": [{"id": "main", "provider": "openai", "vault_ref": "vault://x"}]},
    ],
)
async def test_wrong_seeds_stop_the_start_without_a_word_of_their_secrets(tmp_path: Path, seed: Any) -> None:
    with pytest.raises(KeySettingInvalid) as refused:
        await KeyPlane.open(config(seed=seed), {}, tmp_path, {})
    assert "b" * 64 not in str(refused.value)
    assert "proxy.key_management.seed" in str(refused.value)


async def test_a_bound_credential_is_presented_or_the_request_fails(tmp_path: Path) -> None:
    async with plane(tmp_path, environ={"UPSTREAM": CANARY}) as it:
        assert it.administration is not None
        assert it.vault is not None
        made = await it.administration.credentials.create_credential(
            {"provider": "anthropic", "header": "X-Api-Key", "scheme": ""}, vault_ref="env:UPSTREAM", secret=None
        )
        key = (await desk(it).mint({"credential_id": made.record.id})).record
        assert it.vault.cached(key, "anthropic", "__default__") is None
        presented = await it.vault.presented(key, "anthropic", "__default__")
        assert (presented.header, presented.value) == (b"x-api-key", CANARY.encode())
        assert CANARY not in repr(presented)
        assert it.vault.cached(key, "anthropic", "__default__") is presented
        with pytest.raises(CredentialUnusable, match="openai"):
            it.vault.cached(key, "openai", "__default__")
        await it.administration.credentials.change_credential(
            made.record.id, {}, vault_ref=None, secret="sealed-secret-0001"
        )
        assert (await it.vault.presented(key, "anthropic", "__default__")).value == b"sealed-secret-0001"
        await it.administration.credentials.change_credential(
            made.record.id, {"tenant_id": "blue"}, vault_ref=None, secret=None
        )
        with pytest.raises(CredentialUnusable, match="tenant"):
            await it.vault.presented(key, "anthropic", "__default__")
        await it.administration.credentials.act_on_credential(made.record.id, "revoke")
        with pytest.raises(CredentialUnusable, match="revoked"):
            await it.vault.presented(key, "anthropic", "__default__")
        with pytest.raises(CredentialInUse):
            await it.administration.credentials.delete_credential(made.record.id)
        with pytest.raises(InvalidBody, match="no credential"):
            await desk(it).mint({"credential_id": "nobody"})


def test_envelopes_are_bound_to_their_record_and_master_key(tmp_path: Path) -> None:
    material = key_material(None, None, tmp_path)
    envelope = seal(CANARY, "a", material)
    assert unseal(envelope, "a", material) == CANARY
    assert seal(CANARY, "a", material) != envelope
    other = key_material("pepper of sixteen", "master key of sixteen", tmp_path)
    for record_id, opened_with in (("b", material), ("a", other)):
        with pytest.raises(KeyMaterialUnusable) as refused:
            unseal(envelope, record_id, opened_with)
        assert CANARY not in str(refused.value)
    assert key_material(None, None, tmp_path) == material, "made once"
    assert material.pepper.hex() not in repr(material)


def test_key_material_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    key_material(None, None, tmp_path)
    path = tmp_path / FILE
    path.chmod(0o644)
    with pytest.raises(KeyMaterialUnusable, match="0600"):
        key_material(None, None, tmp_path)
    path.chmod(0o600)
    for text in ("", "{}", json.dumps({"pepper": "aa", "master_key": "bb"}), "[1]"):
        path.write_text(text)
        with pytest.raises(KeyMaterialUnusable, match="damaged"):
            key_material(None, None, tmp_path)
    with pytest.raises(KeyMaterialUnusable, match="pepper"):
        key_material("short", None, tmp_path)


def reasons(findings: Iterator[Finding]) -> str:
    return "; ".join(finding.reason for finding in findings)


def test_rules_of_the_configuration() -> None:
    assert reasons(key_management_findings(config())) == ""
    redis = {"backend": "redis", "url": SecretStr("redis://h")}
    crypto = {"pepper": SecretStr("x" * 16), "master_key": SecretStr("y" * 16)}
    assert reasons(key_management_findings(config(store=redis, crypto=crypto, cache={"tier": "redis"}))) == ""
    for said, word in (
        ({"store": redis}, "pepper"),
        ({"store": {"backend": "redis"}, "crypto": crypto}, "needs a url"),
        ({"store": {**redis, "url": SecretStr("http://h")}, "crypto": crypto}, "redis://"),
        ({"cache": {"tier": "redis"}}, "store.backend redis"),
        ({"governance": {"consistency": "strict"}}, "backend"),
        ({"enabled": False, "seed": seeds()}, "off"),
        ({"inbound": {"headers": [{"name": "X-Api-Key"}, {"name": "x-api-key"}]}}, "differ"),
        ({"seed": {"credentials": [{"id": "c", "provider": "p"}]}}, "exactly one"),
    ):
        assert word in reasons(key_management_findings(config(**said))), said
    short = StaticCredential(name="a", key=SecretStr("short"))
    assert "16" in reasons(static_key_findings([short], ("x",)))
    for said in ({"native_key_policy": "x"}, {"oidc_claim_map": {}}):
        with pytest.raises(ValidationError):
            config(**said)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisProcess(folder)
    server.start()
    yield server
    server.stop()


def shared(server: RedisProcess, **said: Any) -> dict[str, Any]:
    return {
        "store": {"backend": "redis", "url": server.url},
        "crypto": {"pepper": "pepper of them all", "master_key": "master of them all"},
        "cache": {"tier": "redis"},
        **said,
    }


async def subscribed(*planes: KeyPlane) -> None:
    for it in planes:
        assert isinstance(it._broadcast, RedisBroadcast)
        await asyncio.wait_for(it._broadcast.subscribed.wait(), 10)


async def until(true: Any) -> None:
    async with asyncio.timeout(20):
        while not await true():  # noqa: ASYNC110 - another process' daemon decides when
            await asyncio.sleep(0.02)


@pytest.mark.e2e
async def test_a_revocation_reaches_the_other_daemon(tmp_path: Path, redis: RedisProcess) -> None:
    async with plane(tmp_path / "a", **shared(redis)) as one, plane(tmp_path / "b", **shared(redis)) as other:
        await subscribed(one, other)
        minted = await desk(one).mint({})
        assert isinstance(await ask(other, minted.token), Known)
        done = await desk(one).act(minted.record.key_id, "revoke", None)
        assert done.propagation is None

        async def refused() -> bool:
            return isinstance(await ask(other, minted.token), KeyRevoked)

        await until(refused)


@pytest.mark.e2e
async def test_what_was_missed_while_the_link_was_down_is_not_believed(tmp_path: Path, redis: RedisProcess) -> None:
    async with plane(tmp_path / "a", **shared(redis)) as one, plane(tmp_path / "b", **shared(redis)) as other:
        await subscribed(one, other)
        minted = await desk(one).mint({})
        assert isinstance(await ask(other, minted.token), Known)
        # The other daemon's subscription is cut, and the change falls into the gap.
        link = redis_at(redis.url)
        await link.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await link.aclose()
        await desk(one).act(minted.record.key_id, "block", None)

        async def refused() -> bool:
            return not isinstance(await ask(other, minted.token), Known)

        await until(refused)


@pytest.mark.e2e
async def test_a_redis_that_dies_and_comes_back(tmp_path: Path, redis: RedisProcess) -> None:
    async with plane(tmp_path / "a", **shared(redis)) as it:
        minted, fresh = await desk(it).mint({}), await desk(it).mint({})
        assert isinstance(await ask(it, minted.token), Known)
        redis.kill()
        assert isinstance(await ask(it, fresh.token), KeyStoreUnavailable), "neither yes nor no"
        assert it.health() is not None
        redis.start()

        async def known() -> bool:
            return isinstance(await ask(it, fresh.token), Known)

        await until(known)
        assert it.health() is None


@pytest.mark.e2e
async def test_it_opens_without_its_redis_and_plants_its_seeds_later(
    tmp_path: Path, redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbproxy.keys.plane.RETRY_S", (0.05, 0.1))
    redis.kill()
    async with plane(tmp_path / "a", **shared(redis, seed=seeds())) as it:
        assert isinstance(await ask(it, SEEDED), KeyStoreUnavailable)
        redis.start()

        async def known() -> bool:
            return isinstance(await ask(it, SEEDED), Known)

        await until(known)


@pytest.mark.e2e
async def test_a_change_that_others_cannot_be_told_says_so(tmp_path: Path, redis: RedisProcess) -> None:
    async with plane(tmp_path / "a", **shared(redis)) as it:
        await subscribed(it)
        link = redis_at(redis.url)
        await link.execute_command("ACL", "SETUSER", "default", "-publish")
        minted = await desk(it).mint({})
        await link.aclose()
        assert minted.propagation is not None
        assert "60 s" in minted.propagation.effect
        assert isinstance(await ask(it, minted.token), Known)
