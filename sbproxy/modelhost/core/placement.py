"""Where one replica could live on this machine: device sets in the order of preference (contracts section 15).

Decides only. What is free, and who may have to leave, is ``core.residency``; the engine has the last word on a kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sbproxy.catalog.core.model import Accelerator
from sbproxy.devices.core.model import Device, DeviceKind, Machine
from sbproxy.modelhost.core.memory_fit import BYTES_PER_WEIGHT, Demand, estimate
from sbproxy.modelhost.core.status import MemoryEstimate

Acceleration = Literal["auto", "cuda", "metal", "vulkan", "cpu"]
DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees that the planner tries when none is configured."""
SPLITTING = ("vllm", "sglang")
"""Engines over whose replicas the planner spreads a model by itself."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a replica: the estimate is per device, and every device of the set has to hold it.

    With ``offload_layers`` the experts of so many layers stay in the CPU's memory, where they take ``host_bytes``.
    """

    devices: tuple[Device, ...]
    need: MemoryEstimate
    floor_bytes: int = 0
    """The catalog's minimum, which a single device must offer."""
    offload_layers: int = 0
    host: Device | None = None
    host_bytes: int = 0

    @property
    def kind(self) -> DeviceKind:
        return self.devices[0].kind

    @property
    def indexes(self) -> tuple[int, ...]:
        return tuple(device.index for device in self.devices)

    @property
    def wanted_bytes(self) -> int:
        """What each device must have free."""
        return max(self.need.total_bytes, self.floor_bytes)

    @property
    def pools(self) -> tuple[tuple[Device, int], ...]:
        """Every memory pool that this takes from, with the bytes that must be free there."""
        host = ((self.host, self.host_bytes),) if self.host is not None else ()
        return (*((device, self.wanted_bytes) for device in self.devices), *host)

    @property
    def taken(self) -> dict[int, int]:
        """The bytes that are reserved, by device index."""
        return {device.index: self.need.total_bytes for device in self.devices} | (
            {self.host.index: self.host_bytes} if self.host is not None else {}
        )

    def at(self, now: Mapping[int, Device]) -> Option:
        """The same on devices as they are now."""
        host = self.host and now.get(self.host.index, self.host)
        return replace(self, devices=tuple(now.get(each.index, each) for each in self.devices), host=host)


@dataclass(frozen=True, slots=True)
class Policy:
    """What limits the choice: the variant's accelerators, the engine's configured acceleration, the asked degree."""

    accelerators: Sequence[Accelerator]
    acceleration: Acceleration
    tensor_parallel: int | None
    safety_margin: float
    min_memory_bytes: int = 0


def kinds(machine: Machine, policy: Policy) -> list[DeviceKind]:
    """The device kinds that policy and catalog allow, best first; the CPU last.

    Only ``auto`` may fall from a card to the CPU, and only when the engine build cannot use the card: a model that
    is too big for the card is refused rather than run slowly by surprise. Vulkan drives any card.
    """
    found: list[DeviceKind] = []
    if policy.acceleration != "cpu":
        allowed = ("auto", "vulkan")
        found += [
            kind
            for kind in dict.fromkeys(device.kind for device in machine.accelerated)
            if kind in policy.accelerators and (policy.acceleration in allowed or policy.acceleration == kind)
        ]
    if policy.acceleration in ("auto", "cpu") and "cpu" in policy.accelerators:
        found.append("cpu")
    return found


def options(
    machine: Machine, kind: DeviceKind, demand: Demand, policy: Policy, taken: Collection[int] = ()
) -> list[Option]:
    """Every device set of one kind, best first. ``taken`` are cards of the deployment's other replicas, which are
    disjoint; the CPU's memory is one pool that all share.

    One card is tried by free memory; 2, 4 or 8 cards only when they are alike and divide the KV heads.
    """
    if kind == "cpu":
        return [_option((machine.cpu,), demand, policy, 1)] if (policy.tensor_parallel or 1) == 1 else []
    excluded = frozenset(taken)
    cards = [card for card in machine.accelerated if card.kind == kind and card.index not in excluded]
    cards.sort(key=lambda card: (-card.free_bytes, card.index))
    return [
        _option(chosen, demand, policy, degree)
        for degree in _degrees(demand, policy)
        for chosen in _sets(cards, degree)
        if not _gap(demand, chosen)
    ]


def spills(
    machine: Machine, kind: DeviceKind, demand: Demand, policy: Policy, taken: Collection[int] = ()
) -> list[Option]:
    """The last resort for a mixture of experts on one card: whole expert layers in CPU memory, the fewest first."""
    layer = _expert_layer_bytes(demand)
    if kind == "cpu" or layer is None or demand.shape is None or demand.engine != "llama_cpp":
        return []
    excluded = frozenset(taken)
    cards = [card for card in machine.accelerated if card.kind == kind and card.index not in excluded]
    cards.sort(key=lambda card: (-card.free_bytes, card.index))
    found: list[Option] = []
    for layers in range(1, demand.shape.layers + 1):
        spilt = min(layers * layer, demand.weight_bytes)
        lighter = replace(demand, weight_bytes=demand.weight_bytes - spilt)
        host_bytes = int(spilt * (1 + policy.safety_margin))
        for card in cards:
            on_card = _option((card,), lighter, policy, 1)
            found.append(
                replace(on_card, floor_bytes=0, offload_layers=layers, host=machine.cpu, host_bytes=host_bytes)
            )
    return found


def _expert_layer_bytes(demand: Demand) -> int | None:
    """Bytes that the experts of one layer weigh: three matrices each; None where the model does not tell."""
    shape = demand.shape
    if shape is None or not (shape.experts and shape.expert_feed_forward and shape.hidden):
        return None
    weights = 3 * shape.hidden * shape.expert_feed_forward * shape.experts
    return int(weights * BYTES_PER_WEIGHT[demand.weight_class])


def kernel_gap(machine: Machine, kind: DeviceKind, demand: Demand) -> str | None:
    """Why no card of this kind can compute the weights at all; None when one can."""
    gaps = [_gap(demand, (card,)) for card in machine.accelerated if card.kind == kind]
    return gaps[0] if gaps and all(gaps) else None


def shortfall(machine: Machine, kind: DeviceKind, replicas: int, degree: int, taken: Collection[int]) -> str | None:
    """Why no device set of this kind is left for one more replica; None when one could be.

    Replicas have cards of their own, while the CPU's memory is one pool that any number of them shares.
    """
    if kind == "cpu":
        return None if degree == 1 else f"tensor_parallel {degree} needs as many cards, and the CPU is none"
    have = sum(1 for device in machine.accelerated if device.kind == kind)
    if replicas * degree > have:
        wanted = f"replicas {replicas} x tensor_parallel {degree} need {replicas * degree} {kind} devices"
        return f"{wanted}, this machine has {have}"
    if have - len(taken) < degree:
        return f"a replica needs {degree} {kind} devices, {have - len(taken)} of {have} are left"
    return None


def _degrees(demand: Demand, policy: Policy) -> tuple[int, ...]:
    if policy.tensor_parallel is not None:
        return (policy.tensor_parallel,)
    if demand.engine not in SPLITTING:
        return (1,)
    heads = demand.shape.kv_heads if demand.shape else None
    return tuple(degree for degree in DEGREES if degree == 1 or (heads is not None and heads % degree == 0))


def _sets(cards: list[Device], degree: int) -> Iterator[tuple[Device, ...]]:
    if degree == 1:
        yield from ((card,) for card in cards)
        return
    alike: defaultdict[tuple[str, int], list[Device]] = defaultdict(list)
    for card in cards:
        alike[card.name, card.total_bytes].append(card)
    for group in alike.values():
        # The freest ones: the tightest card of a set is what gates it.
        if len(group) >= degree:
            yield tuple(sorted(group[:degree], key=lambda card: card.index))


def _option(devices: tuple[Device, ...], demand: Demand, policy: Policy, degree: int) -> Option:
    split = replace(demand, tensor_parallel=degree)
    indexes = () if devices[0].kind == "cpu" else tuple(device.index for device in devices)
    floor = policy.min_memory_bytes if degree == 1 else 0
    return Option(devices, estimate(split, indexes, policy.safety_margin), floor)


def _gap(demand: Demand, devices: tuple[Device, ...]) -> str | None:
    for device in devices:
        if demand.weight_class == "fp8" and device.kind == "cuda" and not device.supports_fp8:
            has = ".".join(map(str, device.compute_capability or ("unknown",)))
            return f"FP8 weights need compute capability 8.9, {device.name} has {has}"
    return None
