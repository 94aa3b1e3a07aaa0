"""Keys as operators handle them: every change is a compare-and-swap, and known to the caches when it is answered.

A :class:`~sbproxy.keys.ports.KeyControl`. What a change means is ``core.change``'s to decide.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sbproxy.errors.admin import InvalidBody
from sbproxy.errors.keys import (
    ConfiguredRecord,
    KeyRecordExists,
    KeyRevisionConflict,
    RotationRefused,
    UnknownCredential,
    UnknownKey,
)
from sbproxy.keys.core.change import ACTION_STATUS, check_current, next_revision, patched, rotated, with_status
from sbproxy.keys.core.preview import Sample, preview
from sbproxy.keys.core.record import KeyRecord
from sbproxy.keys.core.token import mint, rotatable, verifier
from sbproxy.keys.notice import Notice
from sbproxy.keys.ports import Invalidated, KeyAction, KeyChanged, KeyMinted, KeyStore, Propagation

ATTEMPTS: Final = 5
"""How often a change without an expected revision is tried again because somebody was faster."""

Change = Callable[[KeyRecord], KeyRecord]


class KeyDesk:
    """``now`` is Unix time in seconds. ``allow_override``: the policy of seeded keys may be changed here."""

    def __init__(
        self, store: KeyStore, notice: Notice, pepper: bytes, now: Callable[[], float], *, allow_override: bool
    ) -> None:
        self._store = store
        self._notice = notice
        self._pepper = pepper
        self._now = now
        self._allow_override = allow_override

    async def list_keys(self) -> Sequence[KeyRecord]:
        return await self._store.list_keys()

    async def get_key(self, key_id: str) -> KeyRecord:
        record = await self._store.get_key(key_id)
        if record is None:
            raise UnknownKey(key_id)
        return record

    async def mint(self, policy: Mapping[str, Any]) -> KeyMinted:
        secret, now = secrets.token_hex(32), float(int(self._now()))
        for left in range(ATTEMPTS, 0, -1):
            bare = KeyRecord(
                key_id=secrets.token_hex(8), secret_hash=verifier(secret, self._pepper), created_at=now, updated_at=now
            )
            record = patched(bare, policy)
            try:
                await self._store.insert_key(record)
                break
            except UnknownCredential as error:
                raise _unbound(error) from None
            except KeyRecordExists:
                if left == 1:
                    raise
        return KeyMinted(record, None, await self._told(record.key_id), mint(record.key_id, secret))

    async def change(self, key_id: str, expected_revision: int, policy: Mapping[str, Any]) -> KeyChanged:
        def change(record: KeyRecord) -> KeyRecord:
            if record.source == "config" and not self._allow_override:
                way_out = "change it there, or set key_management.allow_api_override"
                raise ConfiguredRecord("key", key_id, way_out)
            return next_revision(patched(record, policy), self._moment())

        return await self._swapped(key_id, expected_revision, change)

    async def act(self, key_id: str, action: KeyAction, expected_revision: int | None) -> KeyChanged:
        status = ACTION_STATUS[action]
        return await self._swapped(
            key_id, expected_revision, lambda record: with_status(record, status, self._moment())
        )

    async def rotate(self, key_id: str, expected_revision: int | None, grace_secs: int) -> KeyMinted:
        secret = secrets.token_hex(32)

        def change(record: KeyRecord) -> KeyRecord:
            if not rotatable(key_id):
                raise RotationRefused(key_id, record.policy_revision)
            return rotated(record, verifier(secret, self._pepper), grace_secs, self._moment())

        done = await self._swapped(key_id, expected_revision, change)
        grace = done.record.prev_hash_expires_at
        return KeyMinted(done.record, done.before, done.propagation, mint(key_id, secret), grace)

    async def delete_key(self, key_id: str) -> KeyChanged:
        record = await self.get_key(key_id)
        if record.source == "config":
            raise ConfiguredRecord("key", key_id, "remove it there, or revoke it here")
        if not await self._store.delete_key(key_id):
            raise UnknownKey(key_id)
        return KeyChanged(record, record, await self._told(key_id))

    async def preview(self, key_id: str, sample: Sample, at: float | None) -> dict[str, Any]:
        return preview(await self.get_key(key_id), sample, self._now() if at is None else at)

    async def evict(self, key_id: str | None) -> Propagation | None:
        return await self._told(key_id)

    async def _swapped(self, key_id: str, expected_revision: int | None, change: Change) -> KeyChanged:
        """Without an expected revision the change is made to whatever is there."""
        for left in range(ATTEMPTS, 0, -1):
            before = await self.get_key(key_id)
            check_current(before, expected_revision)
            after = change(before)
            try:
                await self._store.swap_key(after, before.policy_revision)
            except UnknownCredential as error:
                raise _unbound(error) from None
            except KeyRevisionConflict:
                if expected_revision is not None or left == 1:
                    raise
            else:
                break
        return KeyChanged(after, before, await self._told(key_id))

    async def _told(self, key_id: str | None) -> Propagation | None:
        return await self._notice.give(Invalidated("key", key_id))

    def _moment(self) -> float:
        return float(int(self._now()))


def _unbound(error: UnknownCredential) -> InvalidBody:
    return InvalidBody(f"credential_id: there is no credential {error.credential_id}")
