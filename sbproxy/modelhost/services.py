"""What every deployment of one host shares: the adapters, the desks, the ledger and the host's own settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sbproxy.config.core.model_host import ModelHostConfig
from sbproxy.modelhost.background import Background
from sbproxy.modelhost.core.health import HealthPolicy
from sbproxy.modelhost.core.lifecycle import RestartPolicy
from sbproxy.modelhost.core.residency import House
from sbproxy.modelhost.engine_supply import EngineSupply
from sbproxy.modelhost.job_desk import JobDesk
from sbproxy.modelhost.ledger import ReservationLedger
from sbproxy.modelhost.ports import ArtifactStore, DeviceInventory, EngineDrivers, HostMetrics
from sbproxy.modelhost.pulls import PullDesk
from sbproxy.modelhost.residency import Residency


@dataclass(frozen=True, slots=True)
class Timings:
    """Numbers that the documents leave open (contracts section 45). Seconds, but for what the policies count.

    ``readiness_s`` bounds the time from launch to the first healthy answer, and the wait of a request for a cold
    start unless its queue time-out is longer. ``stop_grace_s`` stands between TERM and KILL.
    """

    readiness_s: float = 600.0
    stop_grace_s: float = 5.0
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    health: HealthPolicy = field(default_factory=HealthPolicy)


@dataclass(frozen=True, slots=True)
class Services:
    """A reload makes a copy with its own ``config`` and, with nothing resident, its own ``store`` and ``drivers``."""

    config: ModelHostConfig
    store: ArtifactStore
    drivers: EngineDrivers
    devices: DeviceInventory
    jobs: JobDesk
    pulls: PullDesk
    supply: EngineSupply
    metrics: HostMetrics
    clock: Callable[[], float]
    timings: Timings
    residency: Residency
    background: Background

    @property
    def ledger(self) -> ReservationLedger:
        return self.residency.ledger


def house_of(config: ModelHostConfig) -> House:
    """The residency rules that a configuration sets."""
    return House(config.cache.max_resident_models, config.cache.eviction == "lru")
