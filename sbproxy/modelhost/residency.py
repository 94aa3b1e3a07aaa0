"""The ledger of memory that engines of this host hold, per device. Nothing is assigned twice.

With several deployments competing for a card this is where eviction candidates will be ranked; until then a start
that does not fit is refused and evicts nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from sbproxy.devices.core.model import Device
from sbproxy.modelhost.core.memory_fit import free_bytes, refusal
from sbproxy.modelhost.core.status import MemoryEstimate

Holder = tuple[str, int]
"""Deployment and generation."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one engine holds on one device."""

    device_index: int
    need: MemoryEstimate


class ReservationLedger:
    """Used on the event loop only: a check and its reservation are one step."""

    def __init__(self) -> None:
        self._held: dict[Holder, Reservation] = {}

    def reserved_bytes(self, device_index: int, *, without: frozenset[Holder] = frozenset()) -> int:
        return sum(
            held.need.total_bytes
            for holder, held in self._held.items()
            if held.device_index == device_index and holder not in without
        )

    def held_by(self, holder: Holder) -> MemoryEstimate | None:
        reservation = self._held.get(holder)
        return reservation.need if reservation else None

    def reserve(
        self, holder: Holder, need: MemoryEstimate, device: Device, min_memory_bytes: int | None, detail: str
    ) -> None:
        """Take the memory; raises InsufficientMemory with every term."""
        free = free_bytes(device, self.reserved_bytes(device.index))
        refused = refusal(holder[0], need, device, free, min_memory_bytes, detail)
        if refused is not None:
            raise refused
        self._held[holder] = Reservation(device.index, need)

    def release(self, holder: Holder) -> None:
        """Give it back; nothing happens when nothing is held."""
        self._held.pop(holder, None)

    def __len__(self) -> int:
        return len(self._held)
