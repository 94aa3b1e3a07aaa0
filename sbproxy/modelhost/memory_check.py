"""Asks, before anything is stopped or started, whether a candidate's engines could find their memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.devices.core.model import Device, Machine
from sbproxy.errors.modelhost import InsufficientMemory, InvalidDesired
from sbproxy.modelhost.core.gguf import ModelShape
from sbproxy.modelhost.core.placement import Option, kinds, options, shortfall, spills
from sbproxy.modelhost.core.residency import Generation, Holding, free_bytes
from sbproxy.modelhost.demand import demand_of, described, policy_of
from sbproxy.modelhost.services import Services


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A deployment of the candidate. ``replaces`` is the generation that a recreate rollout stops before the start;
    ``beside_old`` says that a rolling one starts while its old generation still holds memory."""

    name: str
    config: DeploymentConfig
    artifact: ResolvedArtifact
    shape: ModelShape | None
    starts_now: bool
    replaces: Generation | None = None
    beside_old: bool = False


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """One pass over a candidate with the machine as it is now."""

    services: Services
    machine: Machine

    def run(self, newcomers: list[Newcomer]) -> None:
        """Raise InsufficientMemory for the first one that cannot be, InvalidDesired for more replicas than devices
        or more models than may be resident.

        Those that start in the commit must fit beside each other and beside what may not be evicted; the rest must
        fit a machine that holds nothing else, because otherwise no request could ever start them.
        """
        planned: defaultdict[int, int] = defaultdict(int)
        for newcomer in sorted(newcomers, key=lambda each: each.name):
            taken: set[int] = set()
            for _ in range(newcomer.config.replicas):
                taken |= self._place_one(newcomer, taken, planned)
        self._count([each.name for each in newcomers if each.starts_now])

    def _place_one(self, newcomer: Newcomer, taken: set[int], planned: defaultdict[int, int]) -> set[int]:
        """The cards that one more replica would take; raises when it finds no place."""
        refused: InsufficientMemory | InvalidDesired | None = None
        for option in self._options(newcomer, taken):
            refused = self._refusal(newcomer, option, planned)
            if refused is not None:
                continue
            if newcomer.starts_now:
                for index, size in option.taken.items():
                    planned[index] += size
            return {device.index for device in option.devices if device.kind != "cpu"}
        if refused is None:
            refused = self._none_left(newcomer, taken)
        if refused is not None:
            self.services.metrics.placement_rejected(newcomer.name, refused.code)
            raise refused
        return set()

    def _options(self, newcomer: Newcomer, taken: set[int]) -> Iterator[Option]:
        demand = demand_of(newcomer.artifact, newcomer.config, newcomer.shape)
        policy = policy_of(newcomer.artifact, newcomer.config, self.services.config)
        for kind in kinds(self.machine, policy):
            yield from options(self.machine, kind, demand, policy, taken)
            yield from spills(self.machine, kind, demand, policy, taken)

    def _none_left(self, newcomer: Newcomer, taken: set[int]) -> InvalidDesired | None:
        """More replicas or cards are asked for than there are. No device at all is the engine's refusal to make."""
        config, policy = newcomer.config, policy_of(newcomer.artifact, newcomer.config, self.services.config)
        for kind in kinds(self.machine, policy):
            short = shortfall(self.machine, kind, config.replicas, config.tensor_parallel or 1, taken)
            if short is not None:
                return InvalidDesired(newcomer.name, "replicas" if config.replicas > 1 else "tensor_parallel", short)
        return None

    def _refusal(self, newcomer: Newcomer, option: Option, planned: defaultdict[int, int]) -> InsufficientMemory | None:
        free = {device.index: self._free(newcomer, device, planned) for device, _ in option.pools}
        if all(free[device.index] >= wanted for device, wanted in option.pools):
            return None
        tightest = min(option.devices, key=lambda device: free[device.index])
        need = option.need
        notes = [described(demand_of(newcomer.artifact, newcomer.config, newcomer.shape))]
        if need.total_bytes <= free[tightest.index]:
            notes.insert(0, f"the catalog asks for at least {option.floor_bytes >> 20} MiB")
        if newcomer.beside_old and option.wanted_bytes <= tightest.total_bytes:
            notes.append("rollout: recreate needs no room for two generations")
        return InsufficientMemory(
            deployment=newcomer.name,
            weight_bytes=need.weight_bytes,
            kv_bytes=need.kv_bytes,
            runtime_overhead_bytes=need.runtime_overhead_bytes,
            safety_margin_bytes=need.safety_margin_bytes,
            total_bytes=need.total_bytes,
            free_bytes=free[tightest.index],
            device=tightest.name,
            detail="; ".join(notes),
        )

    def _free(self, newcomer: Newcomer, device: Device, planned: defaultdict[int, int]) -> int:
        if not newcomer.starts_now:
            return device.total_bytes
        holdings = self.services.ledger.holdings((newcomer.name, 0))
        gone = frozenset(each.owner for each in holdings if self._may_leave(newcomer, each))
        return max(0, free_bytes(device, holdings, gone) - planned[device.index])

    def _may_leave(self, newcomer: Newcomer, holding: Holding) -> bool:
        if holding.owner == newcomer.replaces or holding.standing == "leaving":
            return True
        return self.services.config.cache.eviction == "lru" and holding.standing != "fixed"

    def _count(self, starting: list[str]) -> None:
        limit = self.services.config.cache.max_resident_models
        if limit is None:
            return
        holdings = self.services.ledger.holdings(("", 0))
        staying = {each.owner[0] for each in holdings if each.standing == "fixed"}
        together = sorted(staying | set(starting))
        if len(together) > limit:
            raise InvalidDesired(
                "",
                "cache.max_resident_models",
                f"{limit} models may be resident, but {', '.join(together)} are warm, pinned or running in one"
                " revision; raise it, or let some of them start on demand",
            )
