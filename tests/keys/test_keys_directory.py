"""The hot path: what is cached, for how long, what ends it, and what happens while the store is silent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sbproxy.errors.keys import (
    KeyBlocked,
    KeyConflict,
    KeyExpired,
    KeyMissing,
    KeyRevoked,
    KeyStoreFailed,
    KeyStoreUnavailable,
    KeyUnknown,
)
from sbproxy.keys.core.change import rotated
from sbproxy.keys.core.record import KeyRecord
from sbproxy.keys.core.token import mint, verifier
from sbproxy.keys.directory import CacheSettings, Found, KeyDirectory, Known, Posture, Unresolved
from sbproxy.keys.presented import PresentedKeys

PEPPER = b"p" * 32
SECRET = "5" * 64
ID = "0123456789abcdef"
TOKEN = mint(ID, SECRET)
HOST = "ai.local"
HEADERS = (("authorization", "Bearer "), ("x-api-key", ""), ("x-sb-api", ""))


@dataclass
class Clock:
    value: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.value


class MemoryStore:
    """Records by id; ``hold`` keeps answers back, ``failure`` replaces them."""

    def __init__(self, *records: KeyRecord) -> None:
        self.records = {record.key_id: record for record in records}
        self.asked = 0
        self.failure: KeyStoreFailed | None = None
        self.hold = asyncio.Event()
        self.hold.set()

    async def get_key(self, key_id: str) -> KeyRecord | None:
        self.asked += 1
        found = self.records.get(key_id)
        await self.hold.wait()
        if self.failure is not None:
            raise self.failure
        return found


@dataclass
class World:
    store: MemoryStore
    directory: KeyDirectory
    clock: Clock

    def look(self, token: str = TOKEN, *, required: bool = False) -> Known | Unresolved | Any:
        return self.directory.lookup(((b"authorization", f"Bearer {token}".encode()),), HOST, required)

    async def ask(self, token: str = TOKEN, *, required: bool = False) -> Found:
        found = self.look(token, required=required)
        return await self.directory.resolve(found) if isinstance(found, Unresolved) else found


def key(**changes: Any) -> KeyRecord:
    return replace(KeyRecord(key_id=ID, secret_hash=verifier(SECRET, PEPPER), created_at=1.0), **changes)


def world(*records: KeyRecord, posture: Posture = "closed", max_entries: int = 10) -> World:
    store, clock = MemoryStore(*(records or (key(),))), Clock()
    settings = CacheSettings(60, 5, max_entries, posture)
    directory = KeyDirectory(store, PEPPER, PresentedKeys(HEADERS), settings, monotonic=clock, wall=clock)  # type: ignore[arg-type]
    return World(store, directory, clock)


async def test_one_question_serves_everybody_until_the_record_is_old() -> None:
    it = world()
    first = await asyncio.gather(*(it.ask() for _ in range(10)))
    assert it.store.asked == 1
    assert all(isinstance(found, Known) and found.record == key() for found in first)
    found = it.look()
    assert isinstance(found, Known)
    assert (found.header, found.policy_version[:7]) == (b"authorization", "sha256:")
    it.clock.value += 60
    assert isinstance(it.look(), Unresolved)
    assert isinstance(await it.ask(), Known)
    assert it.store.asked == 2


@pytest.mark.parametrize(
    ("policy", "refusal"),
    [
        ({"status": "blocked"}, KeyBlocked),
        ({"status": "revoked"}, KeyRevoked),
        ({"expires_at": 1_800_000_000.0}, KeyExpired),
    ],
)
async def test_states(policy: dict[str, Any], refusal: type[Exception]) -> None:
    it = world(key(**policy))
    assert isinstance(await it.ask(), refusal)
    # From the cache just as well.
    assert isinstance(it.look(), refusal)
    assert it.store.asked == 1


async def test_a_key_expires_in_the_cache_too() -> None:
    it = world(key(expires_at=1_800_000_010.0))
    assert isinstance(await it.ask(), Known)
    it.clock.value += 10
    assert isinstance(it.look(), KeyExpired)


@pytest.mark.parametrize(
    "token",
    [TOKEN[:-1] + "6", mint("f" * 16, SECRET), TOKEN[:-1], "sbp_garbage", "sk-native-key", "x" * 513, "\xff\xfe"],
)
async def test_what_is_not_a_key_is_401(token: str) -> None:
    it = world()
    found = it.directory.lookup(((b"x-api-key", token.encode("latin-1")),), HOST, False)
    assert isinstance(await it.directory.resolve(found) if isinstance(found, Unresolved) else found, KeyUnknown)


async def test_a_wrong_secret_is_remembered_for_a_while_and_not_longer() -> None:
    it = world()
    wrong = mint(ID, "6" * 64)
    assert isinstance(await it.ask(wrong), KeyUnknown)
    assert isinstance(it.look(wrong), KeyUnknown)
    assert it.store.asked == 1
    it.clock.value += 5
    assert isinstance(it.look(wrong), Unresolved)
    # Nothing about the right one was touched.
    assert isinstance(await it.ask(), Known)


async def test_a_key_that_is_made_after_it_was_asked_for_is_found_at_once() -> None:
    it = world(key(key_id="f" * 16))
    assert isinstance(await it.ask(), KeyUnknown)
    it.store.records[ID] = key()
    assert isinstance(it.look(), KeyUnknown)
    it.directory.invalidate(ID)
    assert isinstance(await it.ask(), Known)


async def test_headers() -> None:
    it = world()
    await it.ask()
    other = mint("f" * 16, SECRET).encode()
    token = TOKEN.encode()

    def look(*headers: tuple[bytes, bytes], required: bool = False) -> Any:
        return it.directory.lookup(headers, HOST, required)

    assert look() is None
    assert isinstance(look(required=True), KeyMissing)
    assert look((b"x-sb-api", token)).header == b"x-sb-api"
    assert isinstance(look((b"authorization", b"bearer  " + token + b" ")), Known)
    assert isinstance(look((b"authorization", b"Bearer " + token), (b"x-api-key", token)), Known)
    assert isinstance(look((b"authorization", b"Bearer " + token), (b"x-api-key", other)), KeyConflict)
    assert isinstance(look((b"x-api-key", token), (b"x-api-key", other)), KeyConflict)
    # Another scheme, an empty value and another header hold no key.
    assert look((b"authorization", b"Basic " + token), (b"x-api-key", b""), (b"cookie", token)) is None
    assert it.directory.header_names == {b"authorization", b"x-api-key", b"x-sb-api"}


async def test_a_change_ends_the_cached_record_at_once() -> None:
    it = world()
    await it.ask()
    it.store.records[ID] = key(status="revoked", policy_revision=2)
    it.directory.invalidate(ID)
    assert isinstance(it.look(), Unresolved)
    assert isinstance(await it.ask(), KeyRevoked)


@pytest.mark.parametrize("everything", [False, True])
async def test_an_answer_from_before_a_change_is_not_believed(everything: bool) -> None:
    it = world()
    it.store.hold.clear()
    asking = asyncio.create_task(it.ask())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert it.store.asked == 1
    it.store.records[ID] = key(status="revoked", policy_revision=2)
    it.directory.invalidate(None if everything else ID)
    it.store.hold.set()
    assert isinstance(await asking, KeyRevoked)
    assert isinstance(it.look(), KeyRevoked)
    assert it.store.asked == 2


async def test_a_lower_revision_never_overwrites_a_higher_one() -> None:
    it = world(key(policy_revision=5, name="new"))
    await it.ask()
    it.clock.value += 60
    # A replica that lags behind.
    it.store.records[ID] = key(policy_revision=4, name="old")
    found = await it.ask()
    assert isinstance(found, Known)
    assert found.record.name == "new"
    # The same id made anew is another key.
    it.store.records[ID] = key(policy_revision=1, name="reborn", created_at=2.0)
    found = await it.ask()
    assert isinstance(found, Known)
    assert found.record.name == "reborn"


async def test_the_prior_secret_works_until_the_grace_is_over_also_when_cached() -> None:
    it = world()
    it.store.records[ID] = rotated(key(), verifier("7" * 64, PEPPER), 30, it.clock.value)
    assert isinstance(await it.ask(), Known)
    assert isinstance(await it.ask(mint(ID, "7" * 64)), Known)
    it.clock.value += 30
    assert isinstance(it.look(), KeyUnknown)
    assert isinstance(it.look(mint(ID, "7" * 64)), Known)


async def test_the_cache_is_bounded() -> None:
    records = [key(key_id=f"{n:016x}") for n in range(30)]
    it = world(*records, max_entries=4)
    for record in records:
        assert isinstance(await it.ask(mint(record.key_id, SECRET)), Known)
        assert isinstance(await it.ask(mint(record.key_id, "6" * 64)), KeyUnknown)
    assert len(it.directory) == 4
    assert isinstance(it.look(mint(records[-1].key_id, SECRET)), Known)


@pytest.mark.parametrize(
    ("posture", "cached", "required", "expected"),
    [
        ("closed", True, False, KeyStoreUnavailable),
        ("closed", False, False, KeyStoreUnavailable),
        ("degraded", True, False, Known),
        ("degraded", False, False, KeyStoreUnavailable),
        ("open", True, False, Known),
        ("open", False, False, type(None)),
        ("open", False, True, KeyStoreUnavailable),
    ],
)
async def test_postures(posture: Posture, cached: bool, required: bool, expected: type) -> None:
    it = world(posture=posture)
    if cached:
        await it.ask()
    it.store.failure = KeyStoreFailed("here", "gone")
    assert isinstance(it.look(), Known if cached else Unresolved), "a fresh record needs no store"
    it.clock.value += 60
    assert isinstance(await it.ask(required=required), expected)
    assert it.directory.outage.reason is not None
    # No question while it is known to be down, and everything is well again soon after it is back.
    asked = it.store.asked
    assert isinstance(await it.ask(required=required), expected)
    assert it.store.asked == asked
    it.store.failure = None
    it.clock.value += 1
    assert isinstance(await it.ask(required=required), Known)
    assert it.directory.outage.reason is None


async def test_a_stale_record_of_a_blocked_key_stays_blocked_in_an_outage() -> None:
    it = world(key(status="blocked"), posture="open")
    await it.ask()
    it.store.failure = KeyStoreFailed("here", "gone")
    it.clock.value += 60
    assert isinstance(await it.ask(), KeyBlocked)


async def test_static_keys_belong_to_their_origin() -> None:
    it = world()
    token = "a-static-key-of-one-origin"
    record = KeyRecord(key_id=f"{HOST}/team", secret_hash="x", source="config")
    it.directory.publish_static({HOST: {it.directory.digest(token.encode()): record}})
    found = it.look(token)
    assert isinstance(found, Known)
    assert found.record is record
    elsewhere = it.directory.lookup(((b"x-api-key", token.encode()),), "other.local", False)
    assert isinstance(elsewhere, Unresolved)
    assert isinstance(await it.directory.resolve(elsewhere), KeyUnknown)
    it.directory.publish_static({})
    assert isinstance(it.look(token), Unresolved)


async def test_without_a_store_only_origins_with_keys_ask_for_them() -> None:
    directory = KeyDirectory(None, PEPPER, PresentedKeys(HEADERS), CacheSettings())
    headers = ((b"authorization", b"Bearer anything"),)
    assert directory.lookup(headers, HOST, False) is None
    assert isinstance(directory.lookup(headers, HOST, True), KeyUnknown)
    assert isinstance(directory.lookup((), HOST, True), KeyMissing)


async def test_a_caller_that_leaves_takes_nobody_with_it() -> None:
    it = world()
    it.store.hold.clear()
    leaver, stayer = asyncio.create_task(it.ask()), asyncio.create_task(it.ask())
    await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.sleep(0)
    it.store.hold.set()
    assert isinstance(await stayer, Known)
    assert it.store.asked == 1


async def test_no_secret_in_what_is_printed() -> None:
    it = world()
    unresolved = it.look()
    found = await it.ask()
    assert SECRET not in f"{unresolved!r} {found!r}"
    assert verifier(SECRET, PEPPER) not in repr(found)
