"""Who a request's key is: at once when it is cached, from the store when it is not (contracts section 7).

Digests of tokens lead to records; a stale answer of the store never replaces a newer record. Rules are ``core.policy``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from sbproxy.errors.keys import KeyRefused, KeyStoreFailed, KeyStoreUnavailable, KeyUnknown
from sbproxy.keys.core.caller import Known as Known
from sbproxy.keys.core.caller import Unresolved as Unresolved
from sbproxy.keys.core.policy import lifecycle_refusal, policy_version
from sbproxy.keys.core.record import DEFAULT_TENANT, KeyRecord
from sbproxy.keys.core.token import MAX_TOKEN, Token, matches, parse, token_digest, verifier
from sbproxy.keys.outage import Outage
from sbproxy.keys.ports import KeyStore
from sbproxy.keys.presented import HeaderPairs, PresentedKeys

Posture = Literal["closed", "degraded", "open"]
FOREVER: Final = float("inf")
ATTEMPTS: Final = 3
"""How often a record is read again because it changed while it was being read."""


Found: TypeAlias = Known | KeyRefused | None


@dataclass(slots=True)
class _Entry:
    """``fresh_until`` is on the monotonic clock; ``secret_until`` is Unix time (the grace of a rotated secret)."""

    record: KeyRecord
    version: str
    fresh_until: float
    secret_until: float


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """One reading of the store, and how many changes were known when it began."""

    task: asyncio.Task[KeyRecord | None]
    began_at: int


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Seconds; entries."""

    ttl_s: float = 60.0
    negative_ttl_s: float = 5.0
    max_entries: int = 10_000
    posture: Posture = "closed"


StaticKeys: TypeAlias = Mapping[str, Mapping[bytes, KeyRecord]]
"""Origin to digest of the whole token to record."""


class KeyDirectory:
    """``store`` None: only static keys. Everything but ``resolve`` is synchronous and does no I/O."""

    def __init__(
        self,
        store: KeyStore | None,
        pepper: bytes,
        presented: PresentedKeys,
        settings: CacheSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._pepper = pepper
        self._presented = presented
        self._settings = settings
        self._monotonic = monotonic
        self._wall = wall
        self._entries: dict[bytes, _Entry] = {}
        self._digests: dict[str, set[bytes]] = {}
        self._refused: dict[bytes, float] = {}
        self._loading: dict[str, _Load] = {}
        self._changes = 0
        self._static: dict[str, dict[bytes, _Entry]] = {}
        self.outage = Outage()

    @property
    def header_names(self) -> frozenset[bytes]:
        """Headers that may carry a key, lower case: none of them is ever passed on."""
        return self._presented.names

    def publish_static(self, static: StaticKeys) -> None:
        """Replace the keys of the configuration, from the next lookup on."""
        self._static = {
            origin: {
                digest: _Entry(record, policy_version(record, DEFAULT_TENANT), FOREVER, FOREVER)
                for digest, record in keys.items()
            }
            for origin, keys in static.items()
        }

    def digest(self, token: bytes) -> bytes:
        """What stands for a token in memory."""
        return token_digest(token, self._pepper)

    def lookup(self, headers: HeaderPairs, origin: str, required: bool) -> Known | Unresolved | KeyRefused | None:
        """Who calls. ``origin`` is the key of ``origins``; ``required`` refuses a request without a key.

        None: no key, and none is needed. Every refusal is returned, for the caller to raise.
        """
        static = self._static.get(origin)
        if self._store is None and static is None and not required:
            return None
        found = self._presented.find(headers)
        if found is None:
            return self._presented.missing() if required else None
        if isinstance(found, KeyRefused):
            return found
        header, token = found
        if len(token) > MAX_TOKEN:
            return KeyUnknown()
        digest = token_digest(token, self._pepper)
        entry = static.get(digest) if static is not None else None
        if entry is None:
            entry = self._entries.get(digest)
            if entry is None or entry.fresh_until <= self._monotonic():
                return self._missed(Unresolved(token, digest, header, required))
        return self._usable(entry, header)

    async def resolve(self, asked: Unresolved) -> Found:
        """Ask the store, once for all who wait for the same key. None only under the posture ``open``."""
        token = parse(asked.token.decode("latin-1"))
        if token is None or self._store is None:
            return KeyUnknown()
        if self.outage.lasts(self._monotonic()):
            return self._without_store(asked)
        try:
            record, settled = await self._current(self._store, token.key_id)
        except KeyStoreFailed as error:
            self.outage.began(error, self._monotonic())
            return self._without_store(asked)
        self.outage.ended()
        entry = self._verified(record, token) if record is not None else None
        if entry is None:
            if settled:
                self._forget(asked.digest)
                self._refuse_for_a_while(asked.digest)
            return KeyUnknown()
        return self._usable(self._keep(asked.digest, entry) if settled else entry, asked.header)

    def invalidate(self, key_id: str | None) -> None:
        """Drop a record, or all of them; an answer of the store that is under way is not believed any more."""
        self._changes += 1
        # An id that was unknown may exist now.
        self._refused.clear()
        if key_id is None:
            self._entries.clear()
            self._digests.clear()
            return
        for digest in self._digests.pop(key_id, ()):
            self._entries.pop(digest, None)

    def __len__(self) -> int:
        return len(self._entries)

    def _missed(self, asked: Unresolved) -> Unresolved | KeyRefused:
        if self._store is None:
            return KeyUnknown()
        until = self._refused.get(asked.digest)
        if until is not None:
            if until > self._monotonic():
                return KeyUnknown()
            del self._refused[asked.digest]
        return asked

    def _usable(self, entry: _Entry, header: bytes) -> Known | KeyRefused:
        now = self._wall()
        if entry.secret_until <= now:
            return KeyUnknown()
        record = entry.record
        if record.status != "active" or (record.expires_at is not None and record.expires_at <= now):
            return lifecycle_refusal(record, now) or KeyUnknown()
        return Known(record, entry.version, header)

    async def _current(self, store: KeyStore, key_id: str) -> tuple[KeyRecord | None, bool]:
        """The record, and whether nothing has changed while it was read: only then it may be cached."""
        for _ in range(ATTEMPTS):
            load = self._loading.get(key_id)
            if load is None or load.began_at != self._changes:
                load = self._load(store, key_id)
            record = await asyncio.shield(load.task)
            if load.began_at == self._changes:
                return record, True
        return record, False

    def _load(self, store: KeyStore, key_id: str) -> _Load:
        load = _Load(asyncio.create_task(_read(store, key_id), name="key-lookup"), self._changes)
        self._loading[key_id] = load

        def done(task: asyncio.Task[KeyRecord | None]) -> None:
            if self._loading.get(key_id) is load:
                del self._loading[key_id]
            # All who waited may have left; then nobody else looks at the failure.
            if not task.cancelled():
                task.exception()

        load.task.add_done_callback(done)
        return load

    def _verified(self, record: KeyRecord, token: Token) -> _Entry | None:
        match = matches(record, verifier(token.secret, self._pepper), self._wall())
        if match is None:
            return None
        until = FOREVER if match.until is None else match.until
        fresh = self._monotonic() + self._settings.ttl_s
        return _Entry(record, policy_version(record, record.tenant_id or DEFAULT_TENANT), fresh, until)

    def _keep(self, digest: bytes, entry: _Entry) -> _Entry:
        """Cache it, unless a newer record is there; returns the one that holds."""
        before = self._entries.pop(digest, None)
        if before is not None and _newer(before.record, entry.record):
            self._entries[digest] = before
            return before
        while len(self._entries) >= self._settings.max_entries:
            self._forget(next(iter(self._entries)))
        self._entries[digest] = entry
        self._digests.setdefault(entry.record.key_id, set()).add(digest)
        return entry

    def _forget(self, digest: bytes) -> None:
        entry = self._entries.pop(digest, None)
        if entry is None:
            return
        digests = self._digests.get(entry.record.key_id)
        if digests is not None:
            digests.discard(digest)
            if not digests:
                del self._digests[entry.record.key_id]

    def _refuse_for_a_while(self, digest: bytes) -> None:
        refused = self._refused
        if len(refused) >= self._settings.max_entries:
            del refused[next(iter(refused))]
        refused[digest] = self._monotonic() + self._settings.negative_ttl_s

    def _without_store(self, asked: Unresolved) -> Found:
        posture = self._settings.posture
        stale = self._entries.get(asked.digest)
        if stale is not None and posture != "closed":
            return self._usable(stale, asked.header)
        return None if posture == "open" and not asked.required else KeyStoreUnavailable()


async def _read(store: KeyStore, key_id: str) -> KeyRecord | None:
    return await store.get_key(key_id)


def _newer(one: KeyRecord, other: KeyRecord) -> bool:
    """Of one id: a record that was made later, or the same one at a higher revision."""
    return (one.created_at, one.policy_revision) > (other.created_at, other.policy_revision)
