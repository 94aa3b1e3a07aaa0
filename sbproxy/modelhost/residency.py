"""The queue of replicas that wait for memory: gives each its place, or makes room. Nothing is assigned twice.

Decisions are ``core.residency``'s. Claims are served in the order of their arrival: a later one takes no device that
an earlier one waits for. Everything happens on the event loop, so a decision and what it takes are one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from sbproxy.devices.core.model import Machine
from sbproxy.errors.modelhost import InsufficientMemory
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.background import Background
from sbproxy.modelhost.core.memory_fit import amount
from sbproxy.modelhost.core.placement import Option
from sbproxy.modelhost.core.residency import (
    Await,
    Claim,
    Decision,
    Evict,
    Generation,
    House,
    Place,
    Refused,
    Round,
    free_bytes,
)
from sbproxy.modelhost.ledger import Holder, ReservationLedger, Resident
from sbproxy.modelhost.ports import DeviceInventory, HostMetrics

log = logging.getLogger(__name__)

SETTLE_S = 3.0
"""How long a driver may take to give back the memory of a process that has ended."""
_LOOK_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Wish:
    """What one replica asks for. ``claim`` says what it could do with on a machine as it is now, and may raise what
    refuses it. ``waits`` is told why there is no place yet, and None once there is."""

    holder: Holder
    resident: Resident
    claim: Callable[[Machine], Claim]
    detail: str
    waits: Callable[[Callable[[], str] | None], None]
    patience_s: float
    retry_after_ms: int
    """What a refusal advises that waiting may cure."""


@dataclass(slots=True, eq=False)
class _Waiting:
    wish: Wish
    placed: asyncio.Future[Option]
    decision: Decision | None = None
    free_bytes: int = 0
    """On the tightest device of what was decided, at that moment."""

    expects: bool = False
    """Somebody has left for it."""

    @property
    def has_place(self) -> bool:
        return self.placed.done() and self.placed.exception() is None


@dataclass(slots=True)
class Residency:
    """Gives replicas their place. The machine is looked at in a worker thread before each round of decisions."""

    ledger: ReservationLedger
    devices: DeviceInventory
    metrics: HostMetrics
    background: Background
    house: House = field(default_factory=House)
    _queue: list[_Waiting] = field(default_factory=list)
    _yielding: dict[Generation, Resident] = field(default_factory=dict)
    _kicked: asyncio.Event = field(default_factory=asyncio.Event)
    _at_work: bool = False
    _released_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.ledger.changed = self._released

    def govern(self, house: House) -> None:
        """New rules: who waits may have room by them."""
        self.house = house
        self.standing_changed()

    async def place(self, wish: Wish) -> Option:
        """The place of one replica, reserved for it. Waits at most ``patience_s`` for room that others can make. Raises
        InsufficientMemory, with every term and what holds the memory, when nobody can or did in time, and what the
        claim raises.
        """
        waiting = _Waiting(wish, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._kick()
        try:
            placed, _ = await asyncio.wait((waiting.placed,), timeout=wish.patience_s)
            if not placed:
                raise self._too_late(waiting)
            return waiting.placed.result()
        except asyncio.CancelledError:
            # Placed in the same turn in which the run was told to end.
            if waiting.has_place:
                self.ledger.release(wish.holder)
            raise
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)
            self._kick()

    def standing_changed(self) -> None:
        """A generation became idle or ready, or may be displaced now: somebody may be waiting for that."""
        if self._queue or self._yielding:
            self._kick()

    def _released(self) -> None:
        # Noted also while nobody waits: who comes next meets a driver that may be late.
        self._released_at = asyncio.get_running_loop().time()
        self.standing_changed()

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
                look_again = False
                if self._queue:
                    machine = await asyncio.to_thread(self.devices.probe)
                    look_again = self._round(machine)
                else:
                    self._relent(set())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN_S if look_again else None):
                        if self._queue:
                            await self._kicked.wait()
        except Exception as error:  # the top of the task: nobody may wait for a round that never comes
            log.exception("placement broke")
            self._break(error)
        finally:
            self._at_work = False

    def _break(self, error: Exception) -> None:
        for waiting in self._queue:
            if not waiting.placed.done():
                waiting.placed.set_exception(error)
        self._queue.clear()
        self._relent(set())

    def _round(self, machine: Machine) -> bool:
        """Decide for everybody who waits, in order; whether to look again soon without being asked."""
        settling = asyncio.get_running_loop().time() - self._released_at < SETTLE_S
        round_ = Round(self.house, settling)
        for waiting in list(self._queue):
            if waiting.placed.done():
                continue
            try:
                self._decide(waiting, machine, round_)
            except SbproxyError as refusal:
                self._queue.remove(waiting)
                waiting.placed.set_exception(refusal)
        self._relent(round_.yielding)
        return round_.look_again

    def _decide(self, waiting: _Waiting, machine: Machine, round_: Round) -> None:
        """Raises what refuses it."""
        claim = waiting.wish.claim(machine)
        holdings = self.ledger.holdings(claim.owner)
        decision = round_.decide(claim, holdings, expects=waiting.expects)
        waiting.free_bytes = min(free_bytes(device, holdings, frozenset()) for device in decision.option.devices)
        match decision:
            case Place(option=option):
                self.ledger.reserve(waiting.wish.holder, option, waiting.wish.resident)
                self._queue.remove(waiting)
                waiting.wish.waits(None)
                waiting.placed.set_result(option)
                return
            case Refused():
                raise self._refusal(waiting, decision)
            case Evict(victims=victims):
                for victim in victims:
                    self.metrics.evicted("capacity")
                    self.ledger.residents[victim].evict()
        waiting.decision = decision
        waiting.expects |= isinstance(decision, Evict)
        waiting.wish.waits(lambda: self._why(waiting))

    def _relent(self, wanted: set[Generation]) -> None:
        """Let those go on that nobody waits for any more, and ask the others to make room."""
        for owner, resident in list(self._yielding.items()):
            if owner not in wanted:
                del self._yielding[owner]
                resident.keep_room()
        for owner in wanted - self._yielding.keys():
            resident = self._yielding[owner] = self.ledger.residents[owner]
            resident.yield_room()

    def _refusal(self, waiting: _Waiting, refused: Refused) -> InsufficientMemory:
        notes: list[str] = []
        if refused.option.floor_bytes > refused.option.need.total_bytes:
            notes.append(f"the catalog asks for at least {refused.option.floor_bytes >> 20} MiB")
        if refused.reason == "count":
            notes.append(f"max_resident_models is {self.house.max_resident_models}")
        # What is pinned stays for good; what a policy keeps may leave by itself.
        passing = refused.reason != "too_large" and not self.house.evicts
        return self._insufficient(waiting, refused, refused.holders, notes, passing=passing)

    def _too_late(self, waiting: _Waiting) -> InsufficientMemory:
        if waiting.decision is None:
            raise TimeoutError("no decision about a place in time")
        note = f"no room within {waiting.wish.patience_s:g} s, {self._place_in_queue(waiting)} that wait for it"
        return self._insufficient(waiting, waiting.decision, self._holders(waiting), [note], passing=True)

    def _insufficient(
        self,
        waiting: _Waiting,
        decision: Decision,
        holders: tuple[Generation, ...],
        notes: list[str],
        *,
        passing: bool,
    ) -> InsufficientMemory:
        wish, option = waiting.wish, decision.option
        need = option.need
        return InsufficientMemory(
            deployment=wish.holder[0],
            weight_bytes=need.weight_bytes,
            kv_bytes=need.kv_bytes,
            runtime_overhead_bytes=need.runtime_overhead_bytes,
            safety_margin_bytes=need.safety_margin_bytes,
            total_bytes=need.total_bytes,
            free_bytes=waiting.free_bytes,
            device=" + ".join(device.name for device in option.devices),
            detail="; ".join((*notes, wish.detail)),
            holders=tuple(self._told(owner) for owner in holders if self.ledger.holds(owner)),
            retry_after_ms=wish.retry_after_ms if passing else None,
            most_models=self.house.max_resident_models if _by_count(decision) else None,
        )

    def _why(self, waiting: _Waiting) -> str:
        """For status, and for the caller whose patience ended before there was room."""
        decision = waiting.decision
        total = amount(decision.option.need.total_bytes) if decision else "memory"
        held = ", ".join(self._told(owner) for owner in self._holders(waiting))
        place = self._place_in_queue(waiting)
        text = f"it needs {total} and is {place} that wait for room"
        if decision is not None and _by_count(decision):
            text = (
                f"max_resident_models is {self.house.max_resident_models}, and it is {place} that wait for one to leave"
            )
        return f"{text}, held by {held}" if held else text

    def _place_in_queue(self, waiting: _Waiting) -> str:
        place = 1 + self._queue.index(waiting) if waiting in self._queue else 1
        return f"{place} of {max(place, len(self._queue))}"

    def _holders(self, waiting: _Waiting) -> tuple[Generation, ...]:
        """Whom it waits for; where that is nobody in particular, everybody on the devices that it wants."""
        match waiting.decision:
            case Await(yielding=yielding, leaving=leaving) if yielding or leaving:
                named: tuple[Generation, ...] = (*yielding, *leaving)
            case Evict(victims=victims):
                named = victims
            case Await(option=option):
                wanted = {device.index for device, _ in option.pools}
                named = tuple(
                    each.owner for each in self.ledger.holdings(("", 0)) if wanted & each.bytes_by_device.keys()
                )
            case _:
                named = ()
        return tuple(owner for owner in named if self.ledger.holds(owner))

    def _told(self, owner: Generation) -> str:
        return f"{owner[0]} ({amount(self.ledger.held_bytes(owner))})"


def _by_count(decision: Decision) -> bool:
    """It is the number of resident models that stands in the way."""
    match decision:
        case Refused(reason=reason):
            return reason == "count"
        case Await(for_count=for_count) | Evict(for_count=for_count):
            return for_count
        case _:
            return False
