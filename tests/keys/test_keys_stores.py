"""One contract for both key stores: the SQLite file and a real Redis."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbproxy.errors.keys import (
    CredentialInUse,
    KeyRecordExists,
    KeyRevisionConflict,
    KeyStoreFailed,
    UnknownCredential,
    UnknownKey,
)
from sbproxy.keys.core.record import CredentialRecord, KeyRecord, VaultRef
from sbproxy.keys.ports import KeyStore
from sbproxy.keys.redis_store import CREDENTIALS, KEYS, RedisKeyStore, redis_at, shown_url
from sbproxy.keys.sqlite_store import MIGRATIONS, SqliteKeyStore
from support.redis_process import RedisProcess


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.e2e)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeyStore]:
    if request.param == "sqlite":
        embedded = SqliteKeyStore(tmp_path / "keys.sqlite3")
        await embedded.open()
        yield embedded
        await embedded.close()
        return
    server: RedisProcess = request.getfixturevalue("redis")
    link = redis_at(server.url)
    await link.delete(KEYS, CREDENTIALS)
    await link.aclose()
    shared = RedisKeyStore(server.url)
    yield shared
    await shared.close()


def key(number: int = 1, **changes: object) -> KeyRecord:
    record = KeyRecord(key_id=f"{number:016x}", secret_hash="aa" * 32, created_at=float(number), name="größe")
    return replace(record, **changes)  # type: ignore[arg-type]


def credential(name: str = "c", **changes: object) -> CredentialRecord:
    record = CredentialRecord(id=name, provider="openai", material=VaultRef("env:X"))
    return replace(record, **changes)  # type: ignore[arg-type]


async def test_keys_come_back_as_they_went_in(store: KeyStore) -> None:
    assert await store.get_key("nobody") is None
    assert list(await store.list_keys()) == []
    await store.insert_key(key(2))
    await store.insert_key(key(1, allowed_tools=(), metadata={"a": "b"}))
    assert list(await store.list_keys()) == [key(1, allowed_tools=(), metadata={"a": "b"}), key(2)]
    with pytest.raises(KeyRecordExists):
        await store.insert_key(key(2, name="other"))
    assert await store.get_key(key(2).key_id) == key(2)
    assert await store.delete_key(key(2).key_id)
    assert not await store.delete_key(key(2).key_id)


async def test_a_swap_needs_the_revision_that_is_there(store: KeyStore) -> None:
    with pytest.raises(UnknownKey):
        await store.swap_key(key(policy_revision=2), 1)
    await store.insert_key(key())
    await store.swap_key(key(policy_revision=2, name="b"), 1)
    with pytest.raises(KeyRevisionConflict) as conflict:
        await store.swap_key(key(policy_revision=2, name="c"), 1)
    assert (conflict.value.expected_revision, conflict.value.current_revision) == (1, 2)
    found = await store.get_key(key().key_id)
    assert found is not None
    assert (found.name, found.policy_revision) == ("b", 2)


async def test_of_many_swaps_from_one_revision_one_wins(store: KeyStore) -> None:
    await store.insert_key(key())

    async def swap(name: str) -> str | None:
        try:
            await store.swap_key(key(policy_revision=2, name=name), 1)
        except KeyRevisionConflict:
            return None
        return name

    winners = [name for name in await asyncio.gather(*(swap(f"n{n}") for n in range(20))) if name]
    found = await store.get_key(key().key_id)
    assert found is not None
    assert winners == [found.name]


async def test_credentials(store: KeyStore) -> None:
    assert await store.get_credential("c") is None
    with pytest.raises(UnknownCredential):
        await store.replace_credential(credential())
    await store.insert_credential(credential())
    with pytest.raises(KeyRecordExists):
        await store.insert_credential(credential(provider="x"))
    await store.replace_credential(credential(status="blocked"))
    assert list(await store.list_credentials()) == [credential(status="blocked")]
    assert await store.delete_credential("c")
    assert not await store.delete_credential("c")


async def test_a_key_and_its_credential_stay_together(store: KeyStore) -> None:
    with pytest.raises(UnknownCredential):
        await store.insert_key(key(credential_id="c"))
    assert await store.get_key(key().key_id) is None
    await store.insert_credential(credential())
    await store.insert_key(key(credential_id="c"))
    with pytest.raises(CredentialInUse) as used:
        await store.delete_credential("c")
    assert used.value.keys == (key().key_id,)
    with pytest.raises(UnknownCredential):
        await store.swap_key(key(policy_revision=2, credential_id="d"), 1)
    await store.swap_key(key(policy_revision=2), 1)
    assert await store.delete_credential("c")


async def test_the_file_is_private_and_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "state" / "keys.sqlite3"
    first = SqliteKeyStore(path)
    await first.insert_key(key())
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0
    await first.close()
    second = SqliteKeyStore(path)
    assert await second.get_key(key().key_id) == key()
    await second.close()


async def test_a_file_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    newer = tmp_path / "newer.sqlite3"
    with sqlite3.connect(newer) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    garbage = tmp_path / "garbage.sqlite3"
    garbage.write_bytes(b"no database" * 1000)
    for path in (newer, garbage, tmp_path):
        store = SqliteKeyStore(path)
        with pytest.raises(KeyStoreFailed):
            await store.open()
        await store.close()


async def test_a_damaged_record_is_a_failure_and_not_an_absent_key(tmp_path: Path) -> None:
    store = SqliteKeyStore(tmp_path / "keys.sqlite3")
    await store.insert_key(key())
    with sqlite3.connect(tmp_path / "keys.sqlite3") as db:
        db.execute("UPDATE keys SET document = '{}'")
    db.close()
    with pytest.raises(KeyStoreFailed):
        await store.get_key(key().key_id)
    await store.close()


async def test_an_absent_redis_is_told_without_its_password() -> None:
    url = "redis://user:canary-password@127.0.0.1:1/0"
    store = RedisKeyStore(url)
    with pytest.raises(KeyStoreFailed) as failed:
        await store.get_key("x")
    assert "canary" not in str(failed.value)
    assert shown_url(url) == "redis://127.0.0.1:1/0"
    await store.close()
