"""Asks, before anything is stopped or started, whether a candidate's engines would find their memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.devices.core.model import Device, Machine
from sbproxy.errors.modelhost import InsufficientMemory
from sbproxy.modelhost.core.device_choice import candidates
from sbproxy.modelhost.core.gguf import ModelShape
from sbproxy.modelhost.core.memory_fit import estimate, free_bytes, refusal
from sbproxy.modelhost.demand import demand_of, described
from sbproxy.modelhost.residency import Holder
from sbproxy.modelhost.services import Services


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A deployment of the candidate. ``replaces`` is the holder that a recreate rollout stops before the start;
    ``beside_old`` says that a rolling one starts while its old generation still holds memory."""

    name: str
    config: DeploymentConfig
    artifact: ResolvedArtifact
    shape: ModelShape | None
    starts_now: bool
    replaces: Holder | None = None
    beside_old: bool = False


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """One pass over a candidate with the machine as it is now."""

    services: Services
    machine: Machine

    def run(self, newcomers: list[Newcomer]) -> None:
        """Raise InsufficientMemory for the first one that cannot be.

        Those that start in the commit must fit beside everything resident and beside each other; the rest must fit
        a machine that holds nothing else, because otherwise no request could ever start them.
        """
        planned: defaultdict[int, int] = defaultdict(int)
        for newcomer in sorted(newcomers, key=lambda each: each.name):
            refused: InsufficientMemory | None = None
            for device in self._devices(newcomer):
                refused = self._try(newcomer, device, planned)
                if refused is None:
                    break
            if refused is not None:
                self.services.metrics.placement_rejected(refused.deployment, refused.code)
                raise refused

    def _devices(self, newcomer: Newcomer) -> list[Device]:
        engine = self.services.engine_config(newcomer.artifact.engine)
        accelerators = newcomer.artifact.variant.requirements.accelerators
        return candidates(self.machine, accelerators, engine.acceleration)

    def _try(self, newcomer: Newcomer, device: Device, planned: defaultdict[int, int]) -> InsufficientMemory | None:
        demand = demand_of(newcomer.artifact, newcomer.config, newcomer.shape)
        indexes = () if device.kind == "cpu" else (device.index,)
        need = estimate(demand, indexes, self.services.config.safety_margin)
        free = self._free(newcomer, device) - planned[device.index] if newcomer.starts_now else device.total_bytes
        detail = described(demand)
        if newcomer.beside_old:
            detail += "; rollout: recreate needs no room for two generations"
        minimum = newcomer.artifact.variant.requirements.min_memory_bytes
        refused = refusal(newcomer.name, need, device, max(0, free), minimum, detail)
        if refused is None and newcomer.starts_now:
            planned[device.index] += need.total_bytes
        return refused

    def _free(self, newcomer: Newcomer, device: Device) -> int:
        ledger = self.services.ledger
        if newcomer.replaces is None:
            return free_bytes(device, ledger.reserved_bytes(device.index))
        leaving = frozenset({newcomer.replaces})
        reserved = ledger.reserved_bytes(device.index, without=leaving)
        returned = ledger.reserved_bytes(device.index) - reserved
        after = replace(device, free_bytes=min(device.total_bytes, device.free_bytes + returned))
        return free_bytes(after, reserved)
