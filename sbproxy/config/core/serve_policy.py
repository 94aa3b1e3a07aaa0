"""The one host policy that ``proxy.model_host`` and all ``serve:`` blocks make together, setting by setting.

A setting may be written in one place or equally in several; two values refuse the document and name both places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sbproxy.config.core.findings import Finding
from sbproxy.config.core.model_host import EngineConfig, ModelHostConfig
from sbproxy.config.core.serve import ServeConfig
from sbproxy.config.core.tree import KeyPath, quoted, render

HOST: Final[KeyPath] = ("proxy", "model_host")

_TWINS: Final[dict[str, KeyPath]] = {
    "catalog_file": ("catalog_file",),
    "cache_dir": ("cache", "directory"),
    "cache_budget_gib": ("cache", "budget_gib"),
    "eviction": ("cache", "eviction"),
}
"""Settings of a serve block and where ``proxy.model_host`` has the same."""

_ALONE: Final = ("allow_unpinned_refs", "max_concurrent_requests", "queue_timeout_ms")
"""Settings that only serve blocks have."""


@dataclass(frozen=True, slots=True)
class Said:
    """One value and where it is written."""

    value: Any
    path: KeyPath


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """``settled`` is each setting's first word, by its path in ``proxy.model_host`` or its name in a serve block."""

    settled: Mapping[KeyPath, Said]
    findings: tuple[Finding, ...]

    def applied(self, host: ModelHostConfig) -> ModelHostConfig:
        """``host`` with what the serve blocks add to it."""
        cache = {str(path[1]): said.value for path, said in self.settled.items() if path[0] == "cache"}
        engines = {str(path[1]): said.value for path, said in self.settled.items() if path[0] == "engines"}
        update: dict[str, Any] = {}
        if cache:
            update["cache"] = host.cache.model_copy(update=cache)
        if engines:
            update["engines"] = {**host.engines, **engines}
        if ("catalog_file",) in self.settled:
            update["catalog_file"] = self.settled[("catalog_file",)].value
        return host.model_copy(update=update)

    def value(self, name: str) -> Any:
        """A setting that only serve blocks have; None when none says it."""
        said = self.settled.get((name,))
        return None if said is None else said.value

    def written_at(self, path: KeyPath) -> KeyPath:
        """Where a setting of the lowered ``proxy.model_host`` really is written; ``path`` begins with that block."""
        inside = path[len(HOST) :]
        for length in (2, 1):
            said = self.settled.get(inside[:length])
            if said is not None:
                return (*said.path, *inside[length:])
        return path


def host_policy(host: ModelHostConfig, blocks: Sequence[tuple[KeyPath, ServeConfig]]) -> HostPolicy:
    """``blocks`` are all serve blocks with their paths, in the order of the document."""
    words: defaultdict[KeyPath, list[Said]] = defaultdict(list)
    for setting, said in _canonical(host):
        words[setting].append(said)
    for path, serve in blocks:
        for setting, said in _served(serve, path):
            words[setting].append(said)
    settled = {setting: said[0] for setting, said in words.items()}
    found = [_conflict(other, said[0]) for said in words.values() for other in said[1:] if other.value != said[0].value]
    return HostPolicy(settled, tuple(found))


def _canonical(host: ModelHostConfig) -> Iterator[tuple[KeyPath, Said]]:
    for twin in _TWINS.values():
        block: Any = host
        for step in twin[:-1]:
            block = getattr(block, str(step))
        value = getattr(block, str(twin[-1]))
        if twin[-1] in block.model_fields_set and value is not None:
            yield twin, Said(value, (*HOST, *twin))
    for name, engine in host.engines.items():
        yield ("engines", name), Said(engine, (*HOST, "engines", name))


def _served(serve: ServeConfig, path: KeyPath) -> Iterator[tuple[KeyPath, Said]]:
    for name in (*_TWINS, *_ALONE):
        value = getattr(serve, name)
        if name in serve.model_fields_set and value is not None:
            yield _TWINS.get(name, (name,)), Said(value, (*path, name))
    for engine_name, engine in serve.engines.items():
        yield ("engines", engine_name), Said(engine, (*path, "engines", engine_name))


def _conflict(other: Said, first: Said) -> Finding:
    shown, there = _shown(other.value), _shown(first.value)
    reason = (
        f"{shown} here, {there} at {render(first.path)}; proxy.model_host and all serve blocks share one host policy,"
        " so write it once or equally"
    )
    return Finding(other.path, reason, depends_on=(first.path, other.path))


def _shown(value: Any) -> str:
    if isinstance(value, EngineConfig):
        written = sorted(value.model_fields_set)
        return f"{', '.join(f'{name} {_shown(getattr(value, name))}' for name in written) or 'defaults'}"
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value) if isinstance(value, str) else str(value)
