"""What a configuration asks of this machine, deployment by deployment: engine, fit, and what is in the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sbproxy.artifacts.core.model import Ready
from sbproxy.catalog.core.model import ModelId, ResolvedArtifact
from sbproxy.config.core.model_host import DeploymentConfig, EngineConfig
from sbproxy.config.core.tree import render
from sbproxy.daemon.checks import argument_findings
from sbproxy.daemon.desired_state import stored_deployments
from sbproxy.engines.core.container import DEFAULT_SHM_GIB
from sbproxy.engines.core.model import Availability
from sbproxy.errors import SbproxyError
from sbproxy_cli.local import Local

GIB = 1 << 30
USABLE = ("available", "acquirable")
CUDA_BY_DEFAULT = ("vllm", "sglang")
"""Engines that run on NVIDIA devices unless their acceleration says otherwise."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One deployment. ``artifact`` is None where its name means nothing on this machine; ``fields`` is its row of
    ``serve_entries``."""

    name: str
    config: DeploymentConfig
    engine: str
    """That the name resolves to, or was asked for, or that its model could want where it is not to be had here."""
    artifact: ResolvedArtifact | None
    missing_bytes: int
    fields: dict[str, Any]


def entries_of(local: Local, availability: Mapping[str, Availability]) -> list[Entry]:
    """Every deployment that a daemon of this configuration would have, stored ones too. Raises DesiredStoreFailed."""
    served = local.loaded.served if local.loaded else {}
    found = []
    for name, config in {**local.host.deployments, **stored_deployments(local.host)}.items():
        entry = _entry(local, name, config, availability)
        raw = served.get(name)
        if raw is not None and raw.raw is not None:
            entry.fields["reference"] = raw.entry.model
        found.append(entry)
    return found


def demand_of(local: Local, entries: list[Entry]) -> dict[str, Any]:
    """``serve_demand`` (contracts section 10)."""
    served = local.loaded.served.values() if local.loaded else ()
    cuda = [each for each in entries if _needs_cuda(local, each)]
    shared = any(each.engine in CUDA_BY_DEFAULT and _engine(local, each).launch != "container" for each in cuda)
    return {
        "requires_cuda": bool(cuda),
        "cuda_engines": sorted({each.engine for each in cuda}),
        # A container is given its own; on the host the engine's processes share ours.
        "required_shm_bytes": int(DEFAULT_SHM_GIB * GIB) if shared else 0,
        "unpinned_refs": [each.entry.model for each in served if each.raw is not None],
        "allow_unpinned_refs": bool(local.loaded and local.loaded.allow_unpinned_refs),
    }


def cuda_devices(local: Local, entries: list[Entry]) -> int:
    """NVIDIA devices that all replicas need together; each has its own."""
    return sum(
        each.config.replicas * (each.config.tensor_parallel or 1) for each in entries if _needs_cuda(local, each)
    )


def _needs_cuda(local: Local, entry: Entry) -> bool:
    acceleration = _engine(local, entry).acceleration
    return acceleration == "cuda" or (acceleration == "auto" and entry.engine in CUDA_BY_DEFAULT)


def _engine(local: Local, entry: Entry) -> EngineConfig:
    return next((block for name, block in local.host.engines.items() if name == entry.engine), EngineConfig())


def _entry(local: Local, name: str, config: DeploymentConfig, availability: Mapping[str, Availability]) -> Entry:
    from sbproxy_cli.models.rows import fit_of

    reference = f"{config.model}:{config.variant}" if config.variant else config.model
    row: dict[str, Any] = {"model": config.model, "reference": reference}
    try:
        artifact = local.resolve(config.model, config.variant, config.engine)
        memory, verdict = fit_of(local, artifact, config)
        missing = _missing(local, artifact)
    except SbproxyError as error:
        reason = str(error)
        row |= {"engine": None, "engine_reason": reason, "runnable": False, "blocker": reason, "fit": None}
        return Entry(name, config, _wished_engine(local, config), None, 0, row)
    found = availability.get(artifact.engine)
    usable = found is not None and found.state in USABLE
    unsafe = [f"{render(each.path)}: {each.reason}" for each in argument_findings(config, (), local.foundation.catalog)]
    blocker = next(iter(unsafe), None) if usable and verdict == "fits" else verdict
    if found and not usable:
        blocker = found.reason
    fit = {
        "verdict": verdict,
        "detail": f"context of {config.max_context or artifact.model.context_length or 'unknown'} tokens",
        "estimated_vram_gib": None if memory is None else round(memory.total_bytes / GIB, 2),
        "quant": artifact.variant.quant,
    }
    row |= {
        "reference": artifact.subject,
        "engine": artifact.engine if usable else None,
        "engine_reason": found.reason if found else f"{artifact.engine} is not supported by this version",
        "runnable": blocker is None,
        "blocker": blocker,
        "fit": fit,
    }
    return Entry(name, config, artifact.engine, artifact, missing, row)


def _wished_engine(local: Local, config: DeploymentConfig) -> str:
    model = local.foundation.catalog.models.get(ModelId(config.model))
    if config.engine != "auto" or model is None:
        return config.engine
    named = [each for each in model.variants if config.variant in (None, each.id)]
    return next((engine for each in named for engine in each.engines), config.engine)


def _missing(local: Local, artifact: ResolvedArtifact) -> int:
    here = isinstance(local.foundation.store.state(artifact), Ready)
    return 0 if here or artifact.variant.unverified else artifact.variant.total_size_bytes
