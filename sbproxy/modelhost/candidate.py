"""Prepares a new desired state without publishing anything: validate, resolve, pull, and check memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sbproxy.artifacts.core.model import PullIntent, Ready
from sbproxy.catalog.core.model import Catalog, ResolvedArtifact, WorkerFacts
from sbproxy.catalog.core.resolve import resolve
from sbproxy.config.core.model_host import DeploymentConfig, ModelHostConfig
from sbproxy.devices.core.model import Machine
from sbproxy.errors.modelhost import FoundationChanged
from sbproxy.modelhost.core.desired import Desired, DesiredPlan, foundation_change, plan, unsupported
from sbproxy.modelhost.core.gguf import ModelShape
from sbproxy.modelhost.deployment import Deployment
from sbproxy.modelhost.memory_check import MemoryCheck, Newcomer
from sbproxy.modelhost.model_shape import shape_of
from sbproxy.modelhost.roster import Roster
from sbproxy.modelhost.services import Services


@dataclass(frozen=True, slots=True)
class Candidate:
    """A desired state that could be committed. ``staged`` are the new generations of what is added or changed."""

    catalog: Catalog
    services: Services
    plan: DesiredPlan
    artifacts: dict[str, ResolvedArtifact]
    staged: dict[str, Deployment]

    def config(self, name: str) -> DeploymentConfig:
        return self.services.config.deployments[name]


def starts_now(config: DeploymentConfig, old: Deployment | None) -> bool:
    """Whether a commit starts this deployment: it is warm, or its old generation serves right now."""
    return config.warm or (old is not None and old.serving)


def drains_first(config: DeploymentConfig, old: Deployment | None) -> bool:
    return config.rollout == "recreate" and old is not None and old.resident


async def prepare_candidate(roster: Roster, catalog: Catalog, services: Services) -> Candidate:
    """Raises InvalidDesired, FoundationChanged, a catalog or artifact leaf, or InsufficientMemory; changes nothing
    but the cache, which keeps what was pulled. The new generations are staged in the roster, for people to see."""
    for problem in unsupported(services.config):
        raise problem
    _check_foundation(roster, catalog, services.config)
    machine = await asyncio.to_thread(services.devices.probe)
    artifacts = await asyncio.to_thread(_resolve_all, catalog, services, machine)
    desired = {
        name: Desired(services.config.deployments[name], artifact.digest, artifact.engine)
        for name, artifact in artifacts.items()
    }
    changes = plan(roster.desired, desired)
    newcomers = (*changes.added, *changes.changed)
    # Once before a byte is fetched for what cannot be, and once with the headers of what came.
    here = await asyncio.to_thread(_shapes_here, services, {name: artifacts[name] for name in newcomers})
    candidate = Candidate(catalog, services, changes, artifacts, {})
    _check_memory(roster, candidate, machine, {name: _told_shape(artifacts[name]) for name in newcomers} | here)
    for name in newcomers:
        new = Deployment(name, roster.next_generation(name), candidate.config(name), artifacts[name], services)
        candidate.staged[name] = new
    roster.stage(candidate.staged)
    shapes = await _pull_all(roster, candidate)
    machine = await asyncio.to_thread(services.devices.probe)
    _check_memory(roster, candidate, machine, {name: shapes.get(name) for name in newcomers})
    return candidate


def _check_memory(
    roster: Roster, candidate: Candidate, machine: Machine, shapes: Mapping[str, ModelShape | None]
) -> None:
    newcomers = [_newcomer(roster, candidate, name, shape) for name, shape in shapes.items()]
    MemoryCheck(candidate.services, machine).run(newcomers)


def _shapes_here(services: Services, artifacts: Mapping[str, ResolvedArtifact]) -> dict[str, ModelShape | None]:
    """Blocking: the shapes of what is in the cache already, whose headers win over the catalog."""
    found: dict[str, ModelShape | None] = {}
    for name, artifact in artifacts.items():
        state = services.store.state(artifact)
        if isinstance(state, Ready):
            found[name] = shape_of(artifact, state.snapshot)
    return found


def _told_shape(artifact: ResolvedArtifact) -> ModelShape | None:
    """The catalog's shape of a model that is not here yet. The context is the catalog's too, so that a larger one in
    the configuration, which the header may cut, refuses nothing by mistake."""
    told = artifact.model.attention
    if told is None:
        return None
    return ModelShape(told.layers, told.kv_heads, told.head_dim, artifact.model.context_length)


def _check_foundation(roster: Roster, catalog: Catalog, config: ModelHostConfig) -> None:
    resident = tuple(sorted({deployment.id for deployment in roster.resident}))
    changed = foundation_change((roster.catalog, roster.services.config), (catalog, config))
    if changed is not None and resident:
        raise FoundationChanged(changed, resident)


def _resolve_all(catalog: Catalog, services: Services, machine: Machine) -> dict[str, ResolvedArtifact]:
    """Blocking: asks every driver whether it could run here. A variant that we choose may not be larger than the
    machine; a pinned one is left to the memory fit, whose refusal prints its terms."""
    states = {name: driver.availability().state for name, driver in services.drivers.items()}
    pinned = WorkerFacts(
        accelerators=frozenset(device.kind for device in machine.devices),
        engines=frozenset(name for name, state in states.items() if state in ("available", "acquirable")),
        compute_capability=max((d.compute_capability for d in machine.devices if d.compute_capability), default=None),
    )
    chosen = replace(pinned, memory_bytes=max(device.total_bytes for device in machine.devices))
    return {
        name: resolve(
            catalog,
            config.model,
            variant=config.variant,
            worker=pinned if config.variant else chosen,
            engine=config.engine,
        )
        for name, config in services.config.deployments.items()
    }


async def _pull_all(roster: Roster, candidate: Candidate) -> dict[str, ModelShape | None]:
    """Pull what must be here before the commit; the shape of every artifact that is here, None where unreadable."""
    slots = asyncio.Semaphore(candidate.services.config.max_parallel_prepares)

    async def one(name: str) -> tuple[str, ModelShape | None] | None:
        services, artifact, config = candidate.services, candidate.artifacts[name], candidate.config(name)
        new = candidate.staged[name]
        needed = config.pull == "on_boot" or starts_now(config, roster.deployments.get(name))
        async with slots:
            state = await asyncio.to_thread(services.store.state, artifact)
            if isinstance(state, Ready) and not needed:
                path = state.snapshot
            elif needed:
                # A warm deployment needs its artifact now, whatever on_demand says about those that may wait.
                intent: PullIntent = "startup" if config.pull == "on_boot" else "runtime"
                pull = services.pulls.snapshot(services.store, artifact, intent, config.pull, new.note_job)
                path = (await pull).path
            else:
                return None
            new.cached()
            return name, await asyncio.to_thread(shape_of, artifact, path)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(name)) for name in candidate.staged]
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return dict(found for task in tasks if (found := task.result()) is not None)


def _newcomer(roster: Roster, candidate: Candidate, name: str, shape: ModelShape | None) -> Newcomer:
    config, old = candidate.config(name), roster.deployments.get(name)
    first = drains_first(config, old)
    beside = old is not None and old.resident and not first
    return Newcomer(
        name=name,
        config=config,
        artifact=candidate.artifacts[name],
        shape=shape,
        starts_now=starts_now(config, old),
        replaces=(old.id, old.generation) if old is not None and first else None,
        beside_old=beside,
    )
