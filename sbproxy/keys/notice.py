"""Tells every cache that a record changed: those of this process at once, those of others where a tier is shared."""

from __future__ import annotations

import logging

from sbproxy.errors.keys import KeyStoreFailed
from sbproxy.keys.credentials import CredentialVault
from sbproxy.keys.directory import KeyDirectory
from sbproxy.keys.ports import Broadcast, Invalidated, Propagation

LOG = logging.getLogger("sbproxy.keys")


class Notice:
    """``ttl_secs``: after how long other processes notice by themselves."""

    def __init__(
        self, directory: KeyDirectory, vault: CredentialVault, broadcast: Broadcast | None, ttl_secs: int
    ) -> None:
        self._directory = directory
        self._vault = vault
        self._broadcast = broadcast
        self._ttl_secs = ttl_secs

    async def give(self, what: Invalidated) -> Propagation | None:
        """None when everybody who can be told is told."""
        self.heard(what)
        if self._broadcast is None:
            return None
        try:
            await self._broadcast.publish(what)
        except KeyStoreFailed as error:
            LOG.warning("%s; other daemons were not told about %s %s", error, what.kind, what.id or "changes")
            effect = f"other daemons may use the record as it was for up to {self._ttl_secs} s"
            return Propagation("the shared tier does not answer", effect)
        return None

    def heard(self, what: Invalidated) -> None:
        """Something changed, here or elsewhere."""
        if what.kind == "credential":
            self._vault.invalidate(what.id)
        else:
            self._directory.invalidate(what.id)
