"""Assembles what `doctor` says of this machine and a configuration (contracts section 10)."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any

from sbproxy.artifacts.core.model import distinct_bytes
from sbproxy.devices.core.model import Device, Machine
from sbproxy.engines.core.extra_args import ENGINE
from sbproxy.engines.core.model import Availability
from sbproxy.errors.artifacts import ArtifactError
from sbproxy_cli.checkup import tools
from sbproxy_cli.checkup.entries import USABLE, Entry, cuda_devices, demand_of, entries_of
from sbproxy_cli.checkup.foreign import foreign_caches
from sbproxy_cli.checkup.strict import CacheMount, Facts, strict_checks
from sbproxy_cli.local import Local

GIB = 1 << 30
_VENDORS = {"cuda": "nvidia", "metal": "apple"}


def examine(local: Local, environ: Mapping[str, str], *, strict: bool = False, online: bool = False) -> dict[str, Any]:
    """The whole JSON body. Probes programs, devices and engines, and the model hub only when ``online``; starts and
    fetches nothing. Raises DesiredStoreFailed."""
    machine = local.machine
    availability = {name: driver.availability() for name, driver in local.foundation.drivers.items()}
    entries = entries_of(local, availability)
    root = local.foundation.cache_root
    free = tools.free_bytes(root)
    demand = demand_of(local, entries)
    shared = tools.shared_memory()
    report = {
        "host": {
            "os": machine.os,
            "arch": machine.arch,
            "cpu_count": machine.cpu_count,
            "total_ram_bytes": machine.cpu.total_bytes,
        },
        "features": _features(),
        "extensions": {"snapshot": {}, "scope": {"mode": "doctor"}},
        "gpus": [_gpu(device) for device in machine.accelerated],
        "drivers": _drivers(machine),
        "engines": [_engine(each) for each in availability.values()],
        **tools.programs(),
        "huggingface": tools.hub(environ, online=online),
        "model_cache_dir": str(root),
        "model_cache_exists": root.is_dir(),
        "model_cache_free_bytes": free,
        "shared_memory": shared,
        "serve_entries": [each.fields for each in entries],
        "cache_budget_check": _budget(local, free),
        "serve_demand": demand,
        "local_serving": _verdict([each.fields for each in entries], availability),
        "foreign_model_caches": foreign_caches(local, environ),
    }
    if strict:
        checks = strict_checks(_facts(local, entries, demand, shared, free))
        report["strict_checks"] = [dataclasses.asdict(each) for each in checks]
    return report


def engine_missing(report: Mapping[str, Any]) -> bool:
    """Whether a configured model has no engine here: exit code 1."""
    return any(entry["engine"] is None for entry in report["serve_entries"])


def startup_blockers(report: Mapping[str, Any]) -> int:
    """Failed checks of ``--strict``; any is exit code 3."""
    return sum(each["status"] == "fail" for each in report.get("strict_checks", ()))


def _facts(
    local: Local, entries: list[Entry], demand: Mapping[str, Any], shared: Mapping[str, Any], free: int | None
) -> Facts:
    machine = local.machine
    cards = [device for device in machine.devices if device.kind == "cuda"]
    wanted = [
        needed
        for each in entries
        if each.artifact and (needed := each.artifact.variant.requirements.min_compute_capability) is not None
    ]
    return Facts(
        cuda_engines=tuple(demand["cuda_engines"]),
        cuda_devices_needed=cuda_devices(local, entries),
        driver=machine.nvidia_driver,
        driver_reason=local.foundation.devices.nvidia_reason,
        cuda_version=machine.cuda_version,
        device_capabilities=tuple(card.compute_capability for card in cards),
        wanted_capability=max(wanted, default=None),
        required_shm_bytes=demand["required_shm_bytes"],
        shm_path=shared["path"],
        shm_free_bytes=shared["available_bytes"],
        cache=_mount(local, entries, free),
        unpinned=tuple(demand["unpinned_refs"]),
        unpinned_allowed=demand["allow_unpinned_refs"],
    )


def _mount(local: Local, entries: list[Entry], free: int | None) -> CacheMount | None:
    budget = local.host.cache.budget_gib
    if not entries and budget is None:
        return None
    root = local.foundation.cache_root
    missing = {each.artifact.digest: each.missing_bytes for each in entries if each.artifact}
    return CacheMount(
        path=str(root),
        problem=tools.unwritable(root),
        free_bytes=free,
        used_bytes=_used(local),
        budget_bytes=None if budget is None else int(budget * GIB),
        missing_bytes=sum(missing.values()),
    )


def _used(local: Local) -> int:
    """Bytes of the artifacts that are cached; 0 where the folder cannot be one, which other facts tell."""
    try:
        return distinct_bytes(local.foundation.store.inventory())
    except ArtifactError:
        return 0


def _features() -> dict[str, bool]:
    return {
        "gpu_nvidia": importlib.util.find_spec("pynvml") is not None,
        "gpu_apple": False,
        "model_weights": True,
        "tls_fingerprint": False,
        "inprocess_embed": False,
        "agent_class": False,
    }


def _gpu(device: Device) -> dict[str, Any]:
    capability = device.compute_capability
    return {
        "index": device.index,
        "vendor": _VENDORS.get(device.kind, "unknown"),
        "name": device.name,
        "total_bytes": device.total_bytes,
        "free_bytes": device.free_bytes,
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "supports_fp8": device.supports_fp8,
        "bandwidth": device.bandwidth_bytes_per_s,
        "utilization": device.compute_utilization,
        "occupancy": round(device.memory_occupancy, 4),
    }


def _drivers(machine: Machine) -> dict[str, Any]:
    return {
        "nvidia_driver": machine.nvidia_driver,
        "cuda": machine.cuda_version,
        "metal": any(device.kind == "metal" for device in machine.devices),
        "rocm": None,
    }


def _engine(found: Availability) -> dict[str, Any]:
    return {
        "engine": found.engine,
        "program": found.program.name if found.program else None,
        "path": str(found.program) if found.program else None,
        "version": found.version,
        "availability": found.state,
        "reason": found.reason,
        "acquisition": [
            {"method": each.method, "available": each.available, "detail": each.detail} for each in found.options
        ],
    }


def _budget(local: Local, free: int | None) -> dict[str, Any] | None:
    budget = local.host.cache.budget_gib
    if budget is None:
        return None
    # What is cached already is part of what the budget is for.
    enough = free is not None and free + _used(local) >= budget * GIB
    return {"budget_gib": budget, "free_gib": None if free is None else round(free / GIB, 2), "sufficient": enough}


def _verdict(entries: list[dict[str, Any]], availability: Mapping[str, Availability]) -> dict[str, Any]:
    """A binary that can be fetched is no blocker; a configured model that cannot run is.

    Without any configured model, the engine that one would get must be to be had.
    """
    blockers = [f"{entry['reference']}: {entry['blocker']}" for entry in entries if not entry["runnable"]]
    automatic = availability[ENGINE]
    if not entries and automatic.state not in USABLE:
        blockers.append(f"{automatic.engine}: {automatic.reason}")
    recommendation = None
    if not entries and not blockers:
        recommendation = "try: sbproxy run smollm2-135m-instruct"
    return {"ready": not blockers, "blockers": blockers, "recommendation": recommendation}
