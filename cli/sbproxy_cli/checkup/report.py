"""Assembles what `doctor` says of this machine and a configuration (contracts section 10)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.config.core.tree import render
from sbproxy.daemon.checks import argument_findings
from sbproxy.devices.core.model import Device, Machine
from sbproxy.engines.core.extra_args import ENGINE
from sbproxy.engines.core.model import Availability
from sbproxy.errors import SbproxyError
from sbproxy_cli.checkup import tools
from sbproxy_cli.local import Local

GIB = 1 << 30
_VENDORS = {"cuda": "nvidia", "metal": "apple"}
_USABLE = ("available", "acquirable")


def examine(local: Local, environ: Mapping[str, str]) -> dict[str, Any]:
    """The whole JSON body. Probes programs, devices, engines and the model hub; starts and fetches nothing."""
    machine = local.machine
    availability = {name: driver.availability() for name, driver in local.foundation.drivers.items()}
    entries = [_entry(local, each, availability) for each in local.host.deployments.values()]
    root = local.foundation.cache_root
    free = tools.free_bytes(root)
    found = tools.programs()
    return {
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
        **found,
        "huggingface": tools.hub(environ),
        "model_cache_dir": str(root),
        "model_cache_exists": root.is_dir(),
        "model_cache_free_bytes": free,
        "shared_memory": tools.shared_memory(),
        "serve_entries": entries,
        "cache_budget_check": _budget(local, free),
        "serve_demand": _demand(entries),
        "local_serving": _verdict(entries, availability),
        "foreign_model_caches": tools.foreign_caches(Path(environ["HOME"]) if environ.get("HOME") else Path.home()),
    }


def engine_missing(report: Mapping[str, Any]) -> bool:
    """Whether a configured model has no engine here: exit code 1."""
    return any(entry["engine"] is None for entry in report["serve_entries"])


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


def _entry(local: Local, deployment: DeploymentConfig, availability: Mapping[str, Availability]) -> dict[str, Any]:
    from sbproxy_cli.models.rows import fit_of

    reference = f"{deployment.model}:{deployment.variant}" if deployment.variant else deployment.model
    entry: dict[str, Any] = {"model": deployment.model, "reference": reference}
    try:
        artifact = local.resolve(deployment.model, deployment.variant, deployment.engine)
    except SbproxyError as error:
        reason = str(error)
        return {**entry, "engine": None, "engine_reason": reason, "runnable": False, "blocker": reason, "fit": None}
    found = availability.get(artifact.engine)
    memory, verdict = fit_of(local, artifact, deployment)
    usable = found is not None and found.state in _USABLE
    unsafe = [f"{render(each.path)}: {each.reason}" for each in argument_findings(deployment, ())]
    blocker = next(iter(unsafe), None) if usable and verdict == "fits" else verdict
    if found and not usable:
        blocker = found.reason
    return {
        **entry,
        "reference": artifact.subject,
        "engine": artifact.engine if usable else None,
        "engine_reason": found.reason if found else f"{artifact.engine} is not supported by this version",
        "runnable": blocker is None,
        "blocker": blocker,
        "fit": {
            "verdict": verdict,
            "detail": f"context of {artifact.model.context_length or 'unknown'} tokens",
            "estimated_vram_gib": None if memory is None else round(memory.total_bytes / GIB, 2),
            "quant": artifact.variant.quant,
        },
    }


def _budget(local: Local, free: int | None) -> dict[str, Any] | None:
    budget = local.host.cache.budget_gib
    if budget is None:
        return None
    enough = free is not None and free >= budget * GIB
    return {"budget_gib": budget, "free_gib": None if free is None else round(free / GIB, 2), "sufficient": enough}


def _demand(entries: list[dict[str, Any]]) -> dict[str, Any]:
    cuda = sorted({entry["engine"] for entry in entries if entry["engine"] in ("vllm", "sglang")})
    return {
        "requires_cuda": bool(cuda),
        "cuda_engines": cuda,
        "required_shm_bytes": 0,
        "unpinned_refs": [],
        "allow_unpinned_refs": False,
    }


def _verdict(entries: list[dict[str, Any]], availability: Mapping[str, Availability]) -> dict[str, Any]:
    """A binary that can be fetched is no blocker; a configured model that cannot run is.

    Without any configured model, the engine that one would get must be to be had.
    """
    blockers = [f"{entry['reference']}: {entry['blocker']}" for entry in entries if not entry["runnable"]]
    automatic = availability[ENGINE]
    if not entries and automatic.state not in _USABLE:
        blockers.append(f"{automatic.engine}: {automatic.reason}")
    recommendation = None
    if not entries and not blockers:
        recommendation = "try: sbproxy run smollm2-135m-instruct"
    return {"ready": not blockers, "blockers": blockers, "recommendation": recommendation}
