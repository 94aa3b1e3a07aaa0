"""Who holds which memory of this machine now. Counts only; who gets some is ``sbproxy.modelhost.residency``'s."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from sbproxy.modelhost.core.placement import Option
from sbproxy.modelhost.core.residency import Generation, Holding, Standing, Urgency
from sbproxy.modelhost.core.status import MemoryEstimate

Holder = tuple[str, int, int]
"""Deployment, generation, replica."""


class Resident(Protocol):
    """A generation as the residency sees it. All of it is quick and happens on the event loop."""

    @property
    def standing(self) -> Standing: ...

    @property
    def last_used(self) -> float: ...

    @property
    def urgency(self) -> Urgency:
        """Of a replica that has no place yet."""
        ...

    def evict(self) -> None:
        """Close the doors at once, and leave."""
        ...

    def yield_room(self) -> None:
        """Serve who is due and park newcomers, for somebody else needs the room."""
        ...

    def keep_room(self) -> None:
        """Nobody needs the room any more."""
        ...


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one replica holds: bytes by device index, and the estimate for one of its cards. Once it is ``loaded`` the
    driver knows of it too."""

    taken: Mapping[int, int]
    need: MemoryEstimate
    loaded: bool = False


class ReservationLedger:
    """Who holds what. ``changed`` is called after every release."""

    def __init__(self) -> None:
        self._held: dict[Holder, Reservation] = {}
        self.residents: dict[Generation, Resident] = {}
        self.changed: Callable[[], None] = lambda: None

    def reserved_bytes(self, device_index: int, *, without: frozenset[Generation] = frozenset()) -> int:
        return sum(held.taken.get(device_index, 0) for holder, held in self._held.items() if holder[:2] not in without)

    def held_by(self, holder: Holder) -> MemoryEstimate | None:
        reservation = self._held.get(holder)
        return reservation.need if reservation else None

    def holds(self, owner: Generation) -> bool:
        """Whether a replica of this generation has its place."""
        return owner in self.residents

    def held_bytes(self, owner: Generation) -> int:
        """What all replicas of one generation hold, over all devices."""
        return sum(sum(held.taken.values()) for holder, held in self._held.items() if holder[:2] == owner)

    def devices_of(self, owner: Generation) -> frozenset[int]:
        """Devices that the replicas of one generation hold, the CPU (-1) left out."""
        return frozenset(
            index for holder, held in self._held.items() if holder[:2] == owner for index in held.taken if index >= 0
        )

    def reserve(self, holder: Holder, option: Option, resident: Resident) -> None:
        """Take what was decided on."""
        self._held[holder] = Reservation(option.taken, option.need)
        self.residents[holder[:2]] = resident

    def loaded(self, holder: Holder) -> None:
        """The engine is ready: what it takes it has taken."""
        held = self._held.get(holder)
        if held is not None:
            self._held[holder] = replace(held, loaded=True)

    def release(self, holder: Holder) -> None:
        """Give it back; nothing happens when nothing is held."""
        if self._held.pop(holder, None) is None:
            return
        if not any(other[:2] == holder[:2] for other in self._held):
            del self.residents[holder[:2]]
        self.changed()

    def holdings(self, asking: Generation) -> list[Holding]:
        """Everything that is held, as ``asking`` sees it: its own deployment's engines never leave for it, and those
        that leave already are waited for."""
        sums: defaultdict[Generation, Counter[int]] = defaultdict(Counter)
        loading: defaultdict[Generation, Counter[int]] = defaultdict(Counter)
        for holder, held in self._held.items():
            sums[holder[:2]].update(held.taken)
            if not held.loaded:
                loading[holder[:2]].update(held.taken)
        found: list[Holding] = []
        for owner, taken in sums.items():
            resident = self.residents[owner]
            standing = resident.standing
            if owner[0] == asking[0] and standing != "leaving":
                standing = "fixed"
            found.append(Holding(owner, taken, standing, resident.last_used, loading.get(owner, {})))
        return found

    def __len__(self) -> int:
        return len(self._held)
