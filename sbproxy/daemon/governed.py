"""Virtual keys in the daemon: opens the key plane and the ledger where a configuration uses keys, and closes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from sbproxy.admin.ports import ComponentHealth
from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.key_management import GovernanceConfig, StaticCredential
from sbproxy.errors.keys import KeySettingInvalid
from sbproxy.gateway.key_gate import KeyGate
from sbproxy.keys.core.governance import Governor
from sbproxy.keys.governance_local import LocalGovernor
from sbproxy.keys.governance_usage import GovernedUsage
from sbproxy.keys.plane import KeyPlane
from sbproxy.keys.ports import KeyAdministration
from sbproxy.observe.core.value import PriceTable

_log = logging.getLogger(__name__)

GOVERNANCE_FILE = "governance.sqlite3"


class GovernedKeys:
    """``gate`` is the gateway's, ``administration`` the admin API's (None while key management is off)."""

    def __init__(self, plane: KeyPlane, governor: Governor) -> None:
        self._plane = plane
        self._prices = PriceTable()
        self.gate = KeyGate(plane.directory, governor, plane.vault, self._price_of)
        administration = plane.administration
        self.administration: KeyAdministration | None = (
            replace(administration, usage=GovernedUsage(governor)) if administration is not None else None
        )

    @classmethod
    async def open(
        cls, config: SbConfig, state_dir: Path, environ: Mapping[str, str], rooms: AsyncExitStack
    ) -> GovernedKeys:
        """``rooms`` closes what was opened. Raises KeySettingInvalid, KeyMaterialUnusable, KeyStoreFailed for the
        embedded store, and GovernanceStoreUnusable."""
        plane = await KeyPlane.open(config.proxy.key_management, static_of(config), state_dir, environ)
        rooms.push_async_callback(plane.close)
        return cls(plane, await _governor(config.proxy.key_management.governance, state_dir, rooms))

    def publish(self, config: SbConfig, prices: PriceTable) -> None:
        """Static keys and prices of a configuration that was committed; its rules were checked before."""
        self._prices = prices
        try:
            self._plane.publish(static_of(config))
        except KeySettingInvalid as error:
            _log.error("static keys stay as they were: %s", error)

    def health(self) -> ComponentHealth:
        """The ``keystore`` component: without its store, keys that are cached still work."""
        reason = self._plane.health()
        return ComponentHealth("keystore", "healthy" if reason is None else "degraded", reason)

    def _price_of(self, origin: str, provider: str, model: str) -> tuple[int, int] | None:
        price = self._prices.find(origin, provider, model)
        return None if price is None else (price.prompt, price.completion)


def static_of(config: SbConfig) -> dict[str, list[StaticCredential]]:
    return {host: origin.credentials for host, origin in config.origins.items() if origin.credentials}


async def _governor(config: GovernanceConfig, state_dir: Path, rooms: AsyncExitStack) -> Governor:
    if config.backend is None:
        local = await asyncio.to_thread(_local, state_dir)
        rooms.push_async_callback(local.close)
        return local
    try:
        from sbproxy.keys.governance_redis import RedisGovernor, RedisTier
    except ModuleNotFoundError as error:
        reason = "strict governance needs the package redis; install sbproxy[redis]"
        raise KeySettingInvalid("proxy.key_management.governance.backend", reason) from error
    tier = RedisTier(config.lease_ttl_secs, config.terminal_retention_secs, config.failure_posture)
    try:
        shared = RedisGovernor.connect(config.backend.url.get_secret_value(), tier)
    except ValueError:
        reason = "is not an address that the Redis client understands"
        raise KeySettingInvalid("proxy.key_management.governance.backend.url", reason) from None
    shared.start()
    rooms.push_async_callback(shared.close)
    return shared


def _local(state_dir: Path) -> LocalGovernor:
    """Blocking."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    return LocalGovernor(state_dir / GOVERNANCE_FILE)
