"""Upstream credentials as operators handle them. Secrets are sealed before they are stored and never come back out.

A :class:`~sbproxy.keys.ports.CredentialControl`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sbproxy.config.core.secret_forms import Literal, secret_form
from sbproxy.errors.admin import InvalidBody
from sbproxy.errors.keys import ConfiguredRecord, UnknownCredential
from sbproxy.keys.core.change import ACTION_STATUS
from sbproxy.keys.core.record import CredentialRecord, Material, VaultRef
from sbproxy.keys.crypto import KeyMaterial, seal
from sbproxy.keys.notice import Notice
from sbproxy.keys.ports import CredentialChanged, Invalidated, KeyAction, KeyStore


class CredentialDesk:
    """``now`` is Unix time in seconds."""

    def __init__(self, store: KeyStore, notice: Notice, material: KeyMaterial, now: Callable[[], float]) -> None:
        self._store = store
        self._notice = notice
        self._material = material
        self._now = now
        # Reading, changing and writing back is one step, or a rename could undo a revocation.
        self._writing = asyncio.Lock()

    async def list_credentials(self) -> Sequence[CredentialRecord]:
        return await self._store.list_credentials()

    async def get_credential(self, credential_id: str) -> CredentialRecord:
        record = await self._store.get_credential(credential_id)
        if record is None:
            raise UnknownCredential(credential_id)
        return record

    async def create_credential(
        self, said: Mapping[str, Any], *, vault_ref: str | None, secret: str | None
    ) -> CredentialChanged:
        credential_id, now = f"cred_{secrets.token_hex(8)}", float(int(self._now()))
        material = new_material(credential_id, vault_ref, secret, self._material)
        if material is None:
            raise InvalidBody("a credential needs vault_ref or secret")
        record = CredentialRecord(id=credential_id, material=material, created_at=now, updated_at=now, **said)
        await self._store.insert_credential(record)
        return await self._told(record, None)

    async def change_credential(
        self, credential_id: str, said: Mapping[str, Any], *, vault_ref: str | None, secret: str | None
    ) -> CredentialChanged:
        material = new_material(credential_id, vault_ref, secret, self._material)
        async with self._writing:
            before = await self._own(credential_id, "change it there")
            after = replace(before, **said, material=material or before.material, updated_at=float(int(self._now())))
            await self._store.replace_credential(after)
        return await self._told(after, before)

    async def act_on_credential(self, credential_id: str, action: KeyAction) -> CredentialChanged:
        async with self._writing:
            before = await self.get_credential(credential_id)
            after = replace(before, status=ACTION_STATUS[action], updated_at=float(int(self._now())))
            await self._store.replace_credential(after)
        return await self._told(after, before)

    async def delete_credential(self, credential_id: str) -> CredentialChanged:
        before = await self._own(credential_id, "remove it there, or revoke it here")
        if not await self._store.delete_credential(credential_id):
            raise UnknownCredential(credential_id)
        return await self._told(before, before)

    async def _own(self, credential_id: str, way_out: str) -> CredentialRecord:
        record = await self.get_credential(credential_id)
        if record.source == "config":
            raise ConfiguredRecord("credential", credential_id, way_out)
        return record

    async def _told(self, record: CredentialRecord, before: CredentialRecord | None) -> CredentialChanged:
        return CredentialChanged(record, before, await self._notice.give(Invalidated("credential", record.id)))


def new_material(
    credential_id: str, vault_ref: str | None, secret: str | None, material: KeyMaterial
) -> Material | None:
    """What is to be stored; None when nothing was said. Raises InvalidBody."""
    if vault_ref is not None and secret is not None:
        raise InvalidBody("give vault_ref or secret, not both")
    if secret is not None:
        if not secret or not (secret.isascii() and secret.isprintable()):
            raise InvalidBody("secret: must be printable ASCII, for it is sent in a header")
        return seal(secret, credential_id, material)
    if vault_ref is None:
        return None
    try:
        form = secret_form(vault_ref, vault_ref)
    except ValueError as error:
        raise InvalidBody(f"vault_ref: {error}") from None
    if isinstance(form, Literal):
        raise InvalidBody("vault_ref: must be env:NAME or file:/absolute/path; a literal belongs into secret")
    return VaultRef(vault_ref)
