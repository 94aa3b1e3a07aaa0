"""Decides the seven checks of `doctor --strict`, in the order of contracts section 10. One that does not apply is
skipped, never passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "fail", "skip"]
NAMES = (
    "driver",
    "visible_devices",
    "cuda_compatibility",
    "shared_memory",
    "cache_mount",
    "model_plane_identity",
    "unpinned_weights",
)


@dataclass(frozen=True, slots=True)
class Check:
    check: str
    status: Status
    detail: str


@dataclass(frozen=True, slots=True)
class CacheMount:
    """The place of the cache; ``problem`` is why nothing can be written there."""

    path: str
    problem: str | None
    free_bytes: int | None
    used_bytes: int
    budget_bytes: int | None
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen, and what the configuration asks for. Capabilities are (major, minor), sizes bytes."""

    cuda_engines: tuple[str, ...]
    cuda_devices_needed: int
    driver: str | None
    driver_reason: str | None
    cuda_version: str | None
    device_capabilities: tuple[tuple[int, int] | None, ...]
    wanted_capability: tuple[int, int] | None
    required_shm_bytes: int
    shm_path: str
    shm_free_bytes: int | None
    cache: CacheMount | None
    unpinned: tuple[str, ...]
    unpinned_allowed: bool


def strict_checks(facts: Facts) -> tuple[Check, ...]:
    """Always seven, in order."""
    found = (
        _driver(facts),
        _visible(facts),
        _compatible(facts),
        _shared_memory(facts),
        _cache_mount(facts.cache),
        _identity(),
        _unpinned(facts),
    )
    return tuple(Check(name, status, detail) for name, (status, detail) in zip(NAMES, found, strict=True))


Verdict = tuple[Status, str]
_NO_CUDA: Verdict = ("skip", "no configured engine needs an NVIDIA device")


def _driver(facts: Facts) -> Verdict:
    if not facts.cuda_engines:
        return _NO_CUDA
    if facts.driver is None:
        why = f": {facts.driver_reason}" if facts.driver_reason else ""
        return "fail", f"{_engines(facts)} needs the NVIDIA driver, which does not answer{why}"
    return "pass", f"NVIDIA driver {facts.driver}"


def _visible(facts: Facts) -> Verdict:
    if not facts.cuda_engines:
        return _NO_CUDA
    seen, needed = len(facts.device_capabilities), facts.cuda_devices_needed
    text = f"{seen} NVIDIA devices seen, {needed} needed"
    return ("pass", text) if seen >= needed else ("fail", f"{text}; show more to this process, or ask for fewer")


def _compatible(facts: Facts) -> Verdict:
    if not facts.cuda_engines:
        return _NO_CUDA
    if facts.cuda_version is None:
        return "fail", f"{_engines(facts)} needs CUDA, and no driver says which version it can do"
    wanted = facts.wanted_capability
    best = max((each for each in facts.device_capabilities if each is not None), default=None)
    if wanted is not None and (best is None or best < wanted):
        have = "none" if best is None else f"{best[0]}.{best[1]}"
        return "fail", f"compute capability {wanted[0]}.{wanted[1]} is needed, the best device has {have}"
    return "pass", f"the driver does CUDA {facts.cuda_version}"


def _shared_memory(facts: Facts) -> Verdict:
    if not facts.required_shm_bytes:
        return "skip", "no configured engine shares memory of this machine between processes"
    need = f"{facts.required_shm_bytes >> 20} MiB needed"
    if facts.shm_free_bytes is None:
        return "fail", f"{facts.shm_path} cannot be read; {need}"
    text = f"{facts.shm_free_bytes >> 20} MiB free in {facts.shm_path}, {need}"
    return ("pass" if facts.shm_free_bytes >= facts.required_shm_bytes else "fail"), text


def _cache_mount(cache: CacheMount | None) -> Verdict:
    if cache is None:
        return "skip", "no model is configured"
    if cache.problem is not None:
        return "fail", f"{cache.path}: {cache.problem}"
    if cache.free_bytes is None:
        return "fail", f"{cache.path}: its free space cannot be read"
    room = cache.free_bytes + cache.used_bytes
    if cache.budget_bytes is not None and room < cache.budget_bytes:
        return "fail", (
            f"{cache.path}: the budget is {cache.budget_bytes >> 20} MiB, the mount can hold {room >> 20} MiB;"
            " enlarge it or lower cache.budget_gib (serve.cache_budget_gib)"
        )
    if cache.free_bytes < cache.missing_bytes:
        missing, free = cache.missing_bytes >> 20, cache.free_bytes >> 20
        return "fail", f"{cache.path}: {missing} MiB are still to be fetched, {free} MiB are free"
    return "pass", f"{cache.path}: writable, {cache.free_bytes >> 20} MiB free"


def _identity() -> Verdict:
    return "skip", "this node is in no cluster"


def _unpinned(facts: Facts) -> Verdict:
    if not facts.unpinned:
        return "skip", "every model is pinned by digests"
    names = ", ".join(facts.unpinned)
    if facts.unpinned_allowed:
        return "pass", f"allow_unpinned_refs admits {names}"
    return "fail", f"{names}: without digests; name a catalog model, or set allow_unpinned_refs in its serve block"


def _engines(facts: Facts) -> str:
    return " and ".join(facts.cuda_engines)
