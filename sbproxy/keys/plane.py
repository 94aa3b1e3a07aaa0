"""Builds the key plane from its configuration, and takes it down: the one constructor for the daemon."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sbproxy.config.core.key_management import InboundConfig, KeyManagementConfig, StaticCredential
from sbproxy.errors.keys import KeySettingInvalid, KeyStoreFailed
from sbproxy.keys.configured import Seeds, static_keys
from sbproxy.keys.credential_desk import CredentialDesk
from sbproxy.keys.credentials import CredentialVault
from sbproxy.keys.crypto import KeyMaterial, key_material
from sbproxy.keys.desk import KeyDesk
from sbproxy.keys.directory import CacheSettings, KeyDirectory
from sbproxy.keys.notice import Notice
from sbproxy.keys.ports import Broadcast, KeyAdministration, KeyStore
from sbproxy.keys.presented import PresentedKeys
from sbproxy.keys.sqlite_store import SqliteKeyStore

LOG = logging.getLogger("sbproxy.keys")
STORE_FILE: Final = "keys.sqlite3"
RETRY_S: Final = (1.0, 30.0)
"""First and longest pause before a store that did not answer is given its seeds again."""

StaticOrigins = Mapping[str, Sequence[StaticCredential]]


class KeyPlane:
    """Opened with :meth:`open`. ``administration``, ``vault`` and ``store`` are None while key management is off."""

    def __init__(self, directory: KeyDirectory, pepper: bytes) -> None:
        self.directory = directory
        self.administration: KeyAdministration | None = None
        self.vault: CredentialVault | None = None
        self.store: KeyStore | None = None
        self._pepper = pepper
        self._broadcast: Broadcast | None = None
        self._planting: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        config: KeyManagementConfig,
        static: StaticOrigins,
        state_dir: Path,
        environ: Mapping[str, str],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> KeyPlane:
        """``static``: host to its ``credentials``. A Redis that is down does not keep it from opening.

        Raises KeySettingInvalid, KeyMaterialUnusable, or KeyStoreFailed for the embedded store.
        """
        if not config.enabled:
            # Nothing outlives the process, so neither has the pepper to.
            pepper = secrets.token_bytes(32)
            plane = cls(_directory(None, pepper, config, monotonic, wall), pepper)
            plane.publish(static)
            return plane
        material = await asyncio.to_thread(key_material, *_secrets(config), state_dir)
        seeds = Seeds(config.seed, material, allow_override=config.allow_api_override)
        store = await _opened_store(config, state_dir)
        plane = cls(_directory(store, material.pepper, config, monotonic, wall), material.pepper)
        plane.store = store
        try:
            plane.publish(static)
            await plane._begin(config, store, material, environ, seeds, monotonic, wall)
        except BaseException:
            await plane.close()
            raise
        return plane

    def publish(self, static: StaticOrigins) -> None:
        """Other static keys, from the next lookup on. Raises KeySettingInvalid, and then keeps what it had."""
        self.directory.publish_static(static_keys(static, self._pepper))

    def health(self) -> str | None:
        """Why the store cannot be asked (the ``keystore`` component), or None."""
        return self.directory.outage.reason

    async def close(self) -> None:
        if self._planting is not None:
            self._planting.cancel()
            await asyncio.gather(self._planting, return_exceptions=True)
        if self._broadcast is not None:
            await self._broadcast.close()
        if self.store is not None:
            await self.store.close()

    async def _begin(
        self,
        config: KeyManagementConfig,
        store: KeyStore,
        material: KeyMaterial,
        environ: Mapping[str, str],
        seeds: Seeds,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        ttl, stale_ok = config.cache.ttl_secs, config.failure_posture != "closed"
        vault = CredentialVault(store, material, environ, ttl, stale_ok=stale_ok, monotonic=monotonic)
        self.vault = vault
        self._broadcast = _broadcast(config)
        notice = Notice(self.directory, vault, self._broadcast, ttl)
        if self._broadcast is not None:
            self._broadcast.listen(notice.heard)
        keys = KeyDesk(store, notice, material.pepper, wall, allow_override=config.allow_api_override)
        self.administration = KeyAdministration(keys, CredentialDesk(store, notice, material, wall))
        if not seeds:
            return
        try:
            await seeds.plant(store, wall())
        except KeyStoreFailed as error:
            if config.store.backend == "embedded":
                raise
            LOG.error("%s; the seeds of the configuration follow when it answers", error)
            self._planting = asyncio.create_task(_plant_later(seeds, store, self.directory, wall), name="key-seeds")
        # What was unknown or different until now may be cached by a tier that is shared.
        self.directory.invalidate(None)


async def _plant_later(seeds: Seeds, store: KeyStore, directory: KeyDirectory, wall: Callable[[], float]) -> None:
    pause = RETRY_S[0]
    while True:
        await asyncio.sleep(pause)
        pause = min(pause * 2, RETRY_S[1])
        try:
            await seeds.plant(store, wall())
        except KeyStoreFailed:
            continue
        except KeySettingInvalid as error:
            LOG.error("seeds of the configuration are not planted: %s", error)
            return
        directory.invalidate(None)
        LOG.info("the seeds of the configuration are in the key store")
        return


def _directory(
    store: KeyStore | None,
    pepper: bytes,
    config: KeyManagementConfig,
    monotonic: Callable[[], float],
    wall: Callable[[], float],
) -> KeyDirectory:
    cache = config.cache
    settings = CacheSettings(cache.ttl_secs, cache.negative_ttl_secs, cache.max_entries, config.failure_posture)
    return KeyDirectory(store, pepper, _presented(config.inbound), settings, monotonic=monotonic, wall=wall)


def _presented(inbound: InboundConfig) -> PresentedKeys:
    return PresentedKeys((header.name, header.scheme) for header in inbound.headers)


def _secrets(config: KeyManagementConfig) -> tuple[str | None, str | None]:
    crypto = config.crypto
    pepper = None if crypto.pepper is None else crypto.pepper.get_secret_value()
    return pepper, None if crypto.master_key is None else crypto.master_key.get_secret_value()


async def _opened_store(config: KeyManagementConfig, state_dir: Path) -> KeyStore:
    if config.store.backend == "embedded":
        embedded = SqliteKeyStore(Path(config.store.path) if config.store.path else state_dir / STORE_FILE)
        try:
            await embedded.open()
        except BaseException:
            await embedded.close()
            raise
        return embedded
    url = _redis_url(config)
    try:
        from sbproxy.keys.redis_store import RedisKeyStore
    except ModuleNotFoundError as error:
        reason = "a Redis store needs the package redis; install sbproxy[redis]"
        raise KeySettingInvalid("proxy.key_management.store.backend", reason) from error
    try:
        return RedisKeyStore(url)
    except ValueError:
        # The client's words would repeat the address, which may hold a password.
        reason = "is not an address that the Redis client understands"
        raise KeySettingInvalid("proxy.key_management.store.url", reason) from None


def _broadcast(config: KeyManagementConfig) -> Broadcast | None:
    if config.cache.tier != "redis":
        return None
    from sbproxy.keys.redis_store import RedisBroadcast

    url = _redis_url(config)
    return RedisBroadcast(url)


def _redis_url(config: KeyManagementConfig) -> str:
    if config.store.url is None:
        raise KeySettingInvalid("proxy.key_management.store.url", "a redis store needs a url")
    return config.store.url.get_secret_value()
