"""The memory that engines of this host hold, and the queue of those that wait for some. Nothing is assigned twice.

Decisions are ``core.residency``'s. Claims are served in the order of their arrival: a later one takes no device that
an earlier one waits for. Everything happens on the event loop, so a decision and what it takes are one step.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sbproxy.devices.core.model import Machine
from sbproxy.errors.modelhost import InsufficientMemory
from sbproxy.modelhost.background import Background
from sbproxy.modelhost.core.memory_fit import amount
from sbproxy.modelhost.core.placement import Option
from sbproxy.modelhost.core.residency import (
    Await,
    Claim,
    Decision,
    Evict,
    Generation,
    Holding,
    House,
    Place,
    Refused,
    Standing,
    decide,
)
from sbproxy.modelhost.core.status import MemoryEstimate
from sbproxy.modelhost.ports import DeviceInventory, HostMetrics

SETTLE_S = 3.0
"""How long a driver may take to give back the memory of a process that has ended."""
_LOOK_AGAIN_S = 0.2

Holder = tuple[str, int, int]
"""Deployment, generation, replica."""


class Resident(Protocol):
    """A generation as the residency sees it. All of it is quick and happens on the event loop."""

    @property
    def standing(self) -> Standing: ...

    @property
    def last_used(self) -> float: ...

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
    """What one replica holds: bytes by device index, and the estimate for one of its cards."""

    taken: Mapping[int, int]
    need: MemoryEstimate


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

    def release(self, holder: Holder) -> None:
        """Give it back; nothing happens when nothing is held."""
        if self._held.pop(holder, None) is None:
            return
        if not any(other[:2] == holder[:2] for other in self._held):
            del self.residents[holder[:2]]
        self.changed()

    def holdings(self, asking: Generation) -> list[Holding]:
        """Everything that is held, as ``asking`` sees it: its own deployment's engines never leave for it."""
        sums: defaultdict[Generation, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        for holder, held in self._held.items():
            for index, size in held.taken.items():
                sums[holder[:2]][index] += size
        return [
            Holding(
                owner,
                dict(taken),
                "fixed" if owner[0] == asking[0] else self.residents[owner].standing,
                self.residents[owner].last_used,
            )
            for owner, taken in sums.items()
        ]

    def __len__(self) -> int:
        return len(self._held)


@dataclass(slots=True, eq=False)
class _Waiting:
    holder: Holder
    claim: Claim
    resident: Resident
    detail: str
    placed: asyncio.Future[Option]
    waits: Callable[[Callable[[], str] | None], None]
    decision: Decision | None = None


@dataclass(slots=True)
class Residency:
    """Gives replicas their place. ``machine`` is looked at in a worker thread before each round of decisions."""

    ledger: ReservationLedger
    devices: DeviceInventory
    metrics: HostMetrics
    background: Background
    _queue: list[_Waiting] = field(default_factory=list)
    _yielding: dict[Generation, Resident] = field(default_factory=dict)
    _kicked: asyncio.Event = field(default_factory=asyncio.Event)
    _at_work: bool = False
    _released_at: float = float("-inf")
    house: House = field(default_factory=House)

    def __post_init__(self) -> None:
        self.ledger.changed = self._released

    async def place(
        self,
        holder: Holder,
        claim: Claim,
        resident: Resident,
        detail: str,
        waits: Callable[[Callable[[], str] | None], None],
    ) -> Option:
        """The place of one replica, reserved for it. Waits for room that others can make; ``waits`` is told why
        before, and None after. Raises InsufficientMemory, with every term and what holds the memory, when nobody can.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(holder, claim, resident, detail, loop.create_future(), waits)
        self._queue.append(waiting)
        self._kick()
        try:
            return await waiting.placed
        except asyncio.CancelledError:
            # Placed in the same turn in which the run was told to end.
            if waiting.placed.done() and not waiting.placed.cancelled() and waiting.placed.exception() is None:
                self.ledger.release(holder)
            raise
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)
            self._kick()

    def standing_changed(self) -> None:
        """A generation became idle or ready: somebody may be waiting for that."""
        if self._queue or self._yielding:
            self._kick()

    def _released(self) -> None:
        if self._queue:
            self._released_at = asyncio.get_running_loop().time()
            self._kick()

    def _kick(self) -> None:
        self._kicked.set()
        if not self._at_work:
            self._at_work = True
            self.background.spawn(self._work(), "placement")

    async def _work(self) -> None:
        """Until nobody waits. One task at a time: two rounds of decisions must never be mixed."""
        try:
            while self._queue or self._yielding:
                self._kicked.clear()
                machine = await asyncio.to_thread(self.devices.probe) if self._queue else None
                look_again = self._round(machine) if machine is not None else self._relent(frozenset())
                try:
                    async with asyncio.timeout(_LOOK_AGAIN_S if look_again else None):
                        if self._queue:
                            await self._kicked.wait()
                except TimeoutError:
                    continue
        finally:
            self._at_work = False

    def _round(self, machine: Machine) -> bool:
        """Decide for everybody who waits, in order; whether a driver may still be giving memory back."""
        settling = asyncio.get_running_loop().time() - self._released_at < SETTLE_S
        promised: frozenset[int] = frozenset()
        count_promised = False
        yielding: set[Generation] = set()
        again = False
        for waiting in list(self._queue):
            if waiting.placed.done():
                continue
            house = House(self.house.max_resident_models, self.house.evicts, promised, count_promised)
            claim = _at_present(waiting.claim, machine)
            decision = waiting.decision = decide(claim, self.ledger.holdings(claim.owner), house)
            match decision:
                case Place(option=option):
                    self._give(waiting, option)
                    continue
                case Evict(option=option, victims=victims):
                    for victim in victims:
                        self.metrics.evicted("capacity")
                        self.ledger.residents[victim].evict()
                case Await(option=option, yielding=movable, for_count=for_count):
                    yielding.update(movable)
                    count_promised |= for_count
                case Refused(option=option):
                    if settling and decision.reason != "count":
                        again = True
                    else:
                        self._refuse(waiting, decision)
                        continue
            promised |= frozenset(option.taken)
            count_promised |= isinstance(decision, Evict)
            waiting.waits(lambda waiting=waiting: self._why(waiting))  # type: ignore[misc]
        self._relent(frozenset(yielding))
        return again

    def _relent(self, wanted: frozenset[Generation]) -> bool:
        """Let those go on that nobody waits for any more, and ask the others to make room."""
        for owner, resident in list(self._yielding.items()):
            if owner not in wanted:
                del self._yielding[owner]
                resident.keep_room()
        for owner in wanted - self._yielding.keys():
            resident = self._yielding[owner] = self.ledger.residents[owner]
            resident.yield_room()
        return False

    def _give(self, waiting: _Waiting, option: Option) -> None:
        self.ledger.reserve(waiting.holder, option, waiting.resident)
        self._queue.remove(waiting)
        waiting.waits(None)
        waiting.placed.set_result(option)

    def _refuse(self, waiting: _Waiting, refused: Refused) -> None:
        self._queue.remove(waiting)
        waiting.placed.set_exception(self._refusal(waiting, refused))

    def _refusal(self, waiting: _Waiting, refused: Refused) -> InsufficientMemory:
        option, need = refused.option, refused.option.need
        notes = [waiting.detail] if waiting.detail else []
        if option.floor_bytes > need.total_bytes:
            notes.insert(0, f"the catalog asks for at least {option.floor_bytes >> 20} MiB")
        if refused.reason == "count":
            notes.append(f"max_resident_models is {self.house.max_resident_models}")
        return InsufficientMemory(
            deployment=waiting.holder[0],
            weight_bytes=need.weight_bytes,
            kv_bytes=need.kv_bytes,
            runtime_overhead_bytes=need.runtime_overhead_bytes,
            safety_margin_bytes=need.safety_margin_bytes,
            total_bytes=need.total_bytes,
            free_bytes=refused.free_bytes,
            device=" + ".join(device.name for device in option.devices),
            detail="; ".join(notes),
            holders=tuple(self._told(owner) for owner in refused.holders),
        )

    def _why(self, waiting: _Waiting) -> str:
        """For the caller whose patience ended before there was room."""
        place = 1 + self._queue.index(waiting) if waiting in self._queue else 1
        decision = waiting.decision
        owners: tuple[Generation, ...] = ()
        if isinstance(decision, Await):
            owners = (*decision.yielding, *decision.leaving)
        elif isinstance(decision, Evict):
            owners = decision.victims
        need = waiting.claim.options[0].need
        held = (
            ", ".join(self._told(owner) for owner in owners if owner in self.ledger.residents) or "an engine that ends"
        )
        total = amount(need.total_bytes)
        return f"it needs {total} and is {place} of {len(self._queue)} that wait for room, held by {held}"

    def _told(self, owner: Generation) -> str:
        return f"{owner[0]} ({amount(self.ledger.held_bytes(owner))})"


def _at_present(claim: Claim, machine: Machine) -> Claim:
    """The same options with what the drivers call free now."""
    now = {device.index: device for device in machine.devices}
    return Claim(
        claim.owner,
        [option.at(now) for option in claim.options],
        [option.at(now) for option in claim.last_resort],
    )
