"""Rules of ``proxy.key_management`` and of static keys that look at more than one value (contracts sections 7, 8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.key_management import CredentialSeed, KeyManagementConfig, StaticCredential
from sbproxy.config.core.secret_forms import may_be_shown
from sbproxy.config.core.tree import KeyPath, quoted

KEY_MANAGEMENT: KeyPath = ("proxy", "key_management")
REDIS_SCHEMES = ("redis", "rediss", "unix")


def uses_keys(config: SbConfig) -> bool:
    """Whether requests are asked for keys, or may bring some."""
    actions = (origin.action for origin in config.origins.values())
    return (
        config.proxy.key_management.enabled
        or config.proxy.key_management.inbound.require
        or any(origin.credentials for origin in config.origins.values())
        or any(action.require_governed_key for action in actions)
    )


def key_management_findings(config: KeyManagementConfig) -> Iterator[Finding]:
    yield from _store(config)
    yield from _governance(config)
    yield from _header_names(config)
    yield from _seeds(config)


def static_key_findings(credentials: Sequence[StaticCredential], path: KeyPath) -> Iterator[Finding]:
    """``path`` is that of the list."""
    yield from _different([entry.name for entry in credentials], path, "name")
    for index, entry in enumerate(credentials):
        key = entry.key.get_secret_value()
        if not may_be_shown(key) and not (key.isascii() and key.isprintable() and " " not in key and len(key) >= 16):
            yield Finding((*path, index, "key"), "must be at least 16 characters of printable ASCII without spaces")


def _store(config: KeyManagementConfig) -> Iterator[Finding]:
    store, path = config.store, (*KEY_MANAGEMENT, "store")
    backend: tuple[KeyPath, ...] = ((*path, "backend"),)
    if store.backend == "embedded":
        if store.url is not None:
            yield Finding((*path, "url"), "the embedded store has no url", depends_on=backend)
        if config.cache.tier == "redis":
            reason = "a redis tier needs store.backend redis, for an embedded store has one daemon only"
            yield Finding((*KEY_MANAGEMENT, "cache", "tier"), reason, depends_on=backend)
        return
    if store.path is not None:
        yield Finding((*path, "path"), "a redis store has no path", depends_on=backend)
    if store.url is None:
        yield Finding((*path, "url"), "a redis store needs a url", depends_on=backend)
    else:
        yield from _redis_url(store.url.get_secret_value(), (*path, "url"))
    for name in ("pepper", "master_key"):
        if getattr(config.crypto, name) is None:
            reason = f"a store that several daemons share needs a {name} that they share"
            yield Finding((*KEY_MANAGEMENT, "crypto", name), reason, depends_on=backend)


def _governance(config: KeyManagementConfig) -> Iterator[Finding]:
    governance, path = config.governance, (*KEY_MANAGEMENT, "governance")
    said: tuple[KeyPath, ...] = ((*path, "consistency"),)
    if governance.consistency == "strict" and governance.backend is None:
        yield Finding((*path, "backend"), "strict consistency needs a backend", depends_on=said)
    if governance.consistency == "approximate" and governance.backend is not None:
        yield Finding((*path, "backend"), "only strict consistency has a backend", depends_on=said)
    if governance.backend is not None:
        yield from _redis_url(governance.backend.url.get_secret_value(), (*path, "backend", "url"))


def _redis_url(url: str, path: KeyPath) -> Iterator[Finding]:
    if may_be_shown(url):
        return
    try:
        parts = urlsplit(url)
        usable = parts.scheme in REDIS_SCHEMES and bool(parts.path if parts.scheme == "unix" else parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        yield Finding(path, "must be a redis://, rediss:// or unix:// address")


def _header_names(config: KeyManagementConfig) -> Iterator[Finding]:
    names = [header.name.lower() for header in config.inbound.headers]
    yield from _different(names, (*KEY_MANAGEMENT, "inbound", "headers"), "name")


def _seeds(config: KeyManagementConfig) -> Iterator[Finding]:
    seed, path = config.seed, (*KEY_MANAGEMENT, "seed")
    if not config.enabled and (seed.keys or seed.credentials):
        reason = "there is no store to put seeds into while key_management is off"
        yield Finding(path, reason, depends_on=((*KEY_MANAGEMENT, "enabled"),))
    yield from _different([entry.id for entry in seed.keys], (*path, "keys"), "id")
    yield from _different([entry.id for entry in seed.credentials], (*path, "credentials"), "id")
    for index, entry in enumerate(seed.credentials):
        yield from _material(entry, (*path, "credentials", index))


def _material(entry: CredentialSeed, path: KeyPath) -> Iterator[Finding]:
    if (entry.secret is None) == (entry.vault_ref is None):
        yield Finding(path, "needs exactly one of secret and vault_ref")


def _different(names: Sequence[str], path: KeyPath, key: str) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        before = first.setdefault(name, index)
        if before != index:
            reason = f"{quoted(name)} already stands at [{before}]; they must differ"
            yield Finding((*path, index, key), reason, depends_on=((*path, before, key),))
