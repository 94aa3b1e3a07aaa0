"""The upstream credential that a key is bound to: read, opened and kept for a while (contracts section 7).

A bound credential that cannot be used stops the request; nothing else is presented in its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sbproxy.config.core.tree import Mark, Scalar
from sbproxy.config.secrets import resolve_secret
from sbproxy.errors.keys import CredentialUnusable, KeyMaterialUnusable, KeyStoreFailed, KeyStoreUnavailable
from sbproxy.keys.core.record import CredentialRecord, KeyRecord, VaultRef
from sbproxy.keys.crypto import KeyMaterial, unseal
from sbproxy.keys.ports import KeyStore

MOST: Final = 1024
"""Opened credentials in memory."""


@dataclass(frozen=True, slots=True)
class Presented:
    """One upstream header, ready to be sent to ``provider`` only."""

    provider: str
    tenant_id: str | None
    header: bytes
    value: bytes = field(repr=False)


class CredentialVault:
    """``ttl_s``: how long an opened credential is used without asking the store."""

    def __init__(
        self,
        store: KeyStore,
        material: KeyMaterial,
        environ: Mapping[str, str],
        ttl_s: float,
        *,
        stale_ok: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._material = material
        self._environ = environ
        self._ttl_s = ttl_s
        self._stale_ok = stale_ok
        self._monotonic = monotonic
        self._open: dict[str, tuple[Presented, float]] = {}
        self._changes = 0

    def cached(self, key: KeyRecord, provider: str, tenant_id: str) -> Presented | None:
        """What is to be presented, when it is known already. Raises CredentialUnusable."""
        kept = self._open.get(key.credential_id or "")
        if kept is None or kept[1] <= self._monotonic():
            return None
        return _fitting(kept[0], key, provider, tenant_id)

    async def presented(self, key: KeyRecord, provider: str, tenant_id: str) -> Presented:
        """What is to be presented to ``provider`` for a key with a ``credential_id``.

        Raises CredentialUnusable, or KeyStoreUnavailable when the store cannot say.
        """
        found = self.cached(key, provider, tenant_id)
        if found is not None:
            return found
        credential_id, began_at = key.credential_id or "", self._changes
        try:
            record = await self._store.get_credential(credential_id)
        except KeyStoreFailed as error:
            kept = self._open.get(credential_id)
            if kept is not None and self._stale_ok:
                return _fitting(kept[0], key, provider, tenant_id)
            raise KeyStoreUnavailable from error
        opened = await self._opened(key, record)
        if began_at == self._changes:
            if len(self._open) >= MOST:
                del self._open[next(iter(self._open))]
            self._open[credential_id] = opened, self._monotonic() + self._ttl_s
        return _fitting(opened, key, provider, tenant_id)

    def invalidate(self, credential_id: str | None) -> None:
        """Forget one, or all."""
        self._changes += 1
        if credential_id is None:
            self._open.clear()
        else:
            self._open.pop(credential_id, None)

    async def _opened(self, key: KeyRecord, record: CredentialRecord | None) -> Presented:
        if record is None:
            self._open.pop(key.credential_id or "", None)
            raise CredentialUnusable(key.key_id, "it does not exist")
        if record.status != "active":
            self._open.pop(record.id, None)
            raise CredentialUnusable(key.key_id, f"it is {record.status}")
        try:
            secret = await self._secret(record)
        except (ValueError, KeyMaterialUnusable) as error:
            # The reason names variables, files and key material: the operator's business.
            raise CredentialUnusable(key.key_id, "its secret cannot be had") from error
        if not (secret.isascii() and secret.isprintable()):
            raise CredentialUnusable(key.key_id, "its secret cannot stand in a header")
        value = f"{record.scheme}{secret}".encode("ascii")
        return Presented(record.provider, record.tenant_id, record.header.lower().encode("ascii"), value)

    async def _secret(self, record: CredentialRecord) -> str:
        material = record.material
        if isinstance(material, VaultRef):
            text = material.reference
            reference = Scalar(text, text, text, Mark(1, 1))
            return await asyncio.to_thread(resolve_secret, reference, (), self._environ)
        return unseal(material, record.id, self._material)


def _fitting(found: Presented, key: KeyRecord, provider: str, tenant_id: str) -> Presented:
    if found.provider != provider:
        raise CredentialUnusable(key.key_id, f"it is not one of provider {provider!r}")
    if found.tenant_id is not None and found.tenant_id != (key.tenant_id or tenant_id):
        raise CredentialUnusable(key.key_id, "it belongs to another tenant")
    return found
