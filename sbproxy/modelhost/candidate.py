"""Prepares a new desired state without publishing anything: validate, resolve, pull, and check memory."""

from __future__ import annotations

import asyncio
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
from sbproxy.modelhost.gguf_header import shape_of
from sbproxy.modelhost.memory_check import MemoryCheck, Newcomer
from sbproxy.modelhost.roster import Roster
from sbproxy.modelhost.services import Services


@dataclass(frozen=True, slots=True)
class Candidate:
    """A desired state that could be committed. ``verified`` are the deployments whose artifact is in the cache."""

    catalog: Catalog
    services: Services
    plan: DesiredPlan
    artifacts: dict[str, ResolvedArtifact]
    verified: frozenset[str]

    def config(self, name: str) -> DeploymentConfig:
        return self.services.config.deployments[name]


def starts_now(config: DeploymentConfig, old: Deployment | None) -> bool:
    """Whether a commit starts this deployment: it is warm, or its old generation serves right now."""
    return config.warm or (old is not None and old.machine.state in ("assigned", "preparing", "ready"))


def drains_first(config: DeploymentConfig, old: Deployment | None) -> bool:
    return config.rollout == "recreate" and old is not None and old.machine.resident


async def prepare_candidate(roster: Roster, catalog: Catalog, services: Services) -> Candidate:
    """Raises InvalidDesired, FoundationChanged, a catalog or artifact leaf, or InsufficientMemory; changes nothing
    but the cache, which keeps what was pulled."""
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
    candidate = Candidate(catalog, services, changes, artifacts, frozenset())
    shapes = await _pull_all(roster, candidate, newcomers)
    checked = [_newcomer(roster, candidate, name, shapes.get(name)) for name in newcomers]
    MemoryCheck(services, await asyncio.to_thread(services.devices.probe)).run(checked)
    return Candidate(catalog, services, changes, artifacts, frozenset(shapes))


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


async def _pull_all(roster: Roster, candidate: Candidate, names: tuple[str, ...]) -> dict[str, ModelShape | None]:
    """Pull what must be here before the commit; the shape of every artifact that is here, None where unreadable."""
    slots = asyncio.Semaphore(candidate.services.config.max_parallel_prepares)

    async def one(name: str) -> tuple[str, ModelShape | None] | None:
        services, artifact, config = candidate.services, candidate.artifacts[name], candidate.config(name)
        needed = config.pull == "on_boot" or starts_now(config, roster.deployments.get(name))
        async with slots:
            state = await asyncio.to_thread(services.store.state, artifact)
            if isinstance(state, Ready) and not needed:
                path = state.snapshot
            elif needed:
                # A warm deployment needs its artifact now, whatever on_demand says about those that may wait.
                intent: PullIntent = "startup" if config.pull == "on_boot" else "runtime"
                path = (await services.pulls.snapshot(services.store, artifact, intent, config.pull)).path
            else:
                return None
            return name, await asyncio.to_thread(shape_of, artifact, path)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(name)) for name in names]
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return dict(found for task in tasks if (found := task.result()) is not None)


def _newcomer(roster: Roster, candidate: Candidate, name: str, shape: ModelShape | None) -> Newcomer:
    config, old = candidate.config(name), roster.deployments.get(name)
    first = drains_first(config, old)
    beside = old is not None and old.machine.resident and not first
    return Newcomer(
        name=name,
        config=config,
        artifact=candidate.artifacts[name],
        shape=shape,
        starts_now=starts_now(config, old),
        replaces=(old.id, old.generation) if old is not None and first else None,
        beside_old=beside,
    )
