"""Who may take which memory, and who leaves for it (document 1, "Admission and residency"). Decides only.

Memory is the smaller of what the driver calls free and what our own reservations leave (field report 40). A model
that would not fit an empty device evicts nobody; room is made by idle generations, the least recently used first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sbproxy.devices.core.model import Device
from sbproxy.modelhost.core.placement import Option

Generation = tuple[str, int]
"""Deployment and generation: what is evicted as a whole."""

Standing = Literal["idle", "busy", "leaving", "fixed"]
"""``busy``: active, queued or preparing, so it may leave later. ``leaving``: it drains. ``fixed``: it is pinned, or
the older generation of the one that asks."""

Urgency = Literal["due", "spare", "unwanted"]
"""``due``: callers or an operator wait for it. ``spare``: others of its generation have their place already, so it
takes what is free or idle and makes nobody yield. ``unwanted``: nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one generation holds now: bytes by device index over all its replicas. ``loading`` are those of them that
    belong to engines that start: the driver may not know of them yet."""

    owner: Generation
    bytes_by_device: Mapping[int, int]
    standing: Standing
    last_used: float
    loading: Mapping[int, int] = field(default_factory=dict)

    def on(self, device: int) -> int:
        return self.bytes_by_device.get(device, 0)

    def unseen_on(self, device: int) -> int:
        return self.loading.get(device, 0)


@dataclass(frozen=True, slots=True)
class Claim:
    """What one replica asks for. ``options`` is not empty, and in the order of preference; ``last_resort`` is looked
    at when none of them could be even on an empty machine."""

    owner: Generation
    options: Sequence[Option]
    last_resort: Sequence[Option] = ()
    urgency: Urgency = "due"


@dataclass(frozen=True, slots=True)
class House:
    """The rules of this host, and what is taken by claims that came earlier and still wait."""

    max_resident_models: int | None = None
    evicts: bool = True
    promised: frozenset[int] = frozenset()
    """Devices that an earlier claim waits for."""
    count_promised: bool = False
    """An earlier claim waits for the number of resident models to fall."""


@dataclass(frozen=True, slots=True)
class Place:
    """There is room now."""

    option: Option


@dataclass(frozen=True, slots=True)
class Evict:
    """These idle generations leave; then there is room."""

    option: Option
    victims: tuple[Generation, ...]
    for_count: bool = False


@dataclass(frozen=True, slots=True)
class Await:
    """Room comes when ``leaving`` are gone and ``yielding`` have served who is due with them."""

    option: Option
    yielding: tuple[Generation, ...]
    leaving: tuple[Generation, ...]
    for_count: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """No eviction that is allowed would make the room."""

    option: Option
    free_bytes: int
    """On the tightest device of the option, with nothing evicted."""
    possible_bytes: int
    """On that device with nobody of ours on it."""
    reason: Literal["too_large", "held", "count"]
    holders: tuple[Generation, ...] = ()


Decision = Place | Evict | Await | Refused


@dataclass(slots=True)
class Round:
    """One look at everybody who waits, in the order of arrival: a later claim takes nothing that an earlier one waits
    for. ``settling``: an engine has ended a moment ago, and the driver may not have all of its memory back."""

    house: House
    settling: bool = False
    yielding: set[Generation] = field(default_factory=set)
    """Who is asked to serve what is due and to park newcomers."""
    look_again: bool = False
    """What is waited for is the driver's, and no event tells when it comes."""

    def decide(self, claim: Claim, holdings: Sequence[Holding], *, expects: bool = False) -> Decision:
        """``expects``: others have left for this claim already, so it displaces no more while their memory may still
        come."""
        late = self.settling or any(each.loading for each in holdings)
        # What a driver may still tell otherwise is no reason to refuse, nor to run a model slowly.
        passing = late and not isinstance(decide(_by_ledger(claim), holdings, self.house), Refused)
        decision = decide(replace(claim, last_resort=()) if passing else claim, holdings, self.house)
        if isinstance(decision, Place):
            return decision
        if claim.urgency == "unwanted" or (claim.urgency == "spare" and _asks_others(decision)):
            return Await(decision.option, (), ())
        if (isinstance(decision, Evict) and self.settling and expects) or (isinstance(decision, Refused) and passing):
            decision = Await(decision.option, (), ())
            self.look_again = True
        self._promise(decision)
        return decision

    def _promise(self, decision: Decision) -> None:
        if isinstance(decision, Await):
            self.yielding.update(decision.yielding)
        if isinstance(decision, Await | Evict):
            self.house = replace(
                self.house,
                promised=self.house.promised | frozenset(decision.option.taken),
                count_promised=self.house.count_promised or decision.for_count,
            )


def _asks_others(decision: Decision) -> bool:
    """Whether it would make somebody yield, or queue up for what others wait for."""
    return isinstance(decision, Await) and bool(decision.yielding or not decision.leaving)


def _by_ledger(claim: Claim) -> Claim:
    """The same on devices whose drivers call everything free."""
    empty = {
        device.index: replace(device, free_bytes=device.total_bytes)
        for option in claim.options
        for device, _ in option.pools
    }
    return replace(claim, options=[option.at(empty) for option in claim.options], last_resort=())


@dataclass(slots=True)
class _Scene:
    claim: Claim
    holdings: Sequence[Holding]
    house: House
    resident: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.resident = frozenset(each.owner[0] for each in self.holdings)

    def free(self, device: Device, gone: frozenset[Generation]) -> int:
        return free_bytes(device, self.holdings, gone)

    def fits(self, option: Option, gone: frozenset[Generation]) -> bool:
        return all(self.free(device, gone) >= wanted for device, wanted in option.pools)

    def counts(self, gone: frozenset[Generation]) -> bool:
        """Whether the number of resident models allows one more."""
        limit = self.house.max_resident_models
        mine = self.claim.owner[0]
        if limit is None or mine in self.resident:
            return True
        staying = {each.owner[0] for each in self.holdings if each.owner not in gone}
        return len(staying | {mine}) <= limit

    @property
    def behind(self) -> bool:
        """An earlier claim waits for a model to leave, and this one would bring another model."""
        return self.house.count_promised and self.claim.owner[0] not in self.resident

    def promised(self, option: Option) -> bool:
        return any(device.index in self.house.promised for device, _ in option.pools)


def free_bytes(device: Device, holdings: Sequence[Holding], gone: frozenset[Generation]) -> int:
    """What a device offers once ``gone`` have left: the smaller of the driver's figure and of our own ledger's.

    What an engine that starts has reserved comes off the driver's figure too, for it will take that in a moment.
    """
    index = device.index
    staying = [each for each in holdings if each.owner not in gone]
    leaving = [each for each in holdings if each.owner in gone]
    back = sum(each.on(index) - each.unseen_on(index) for each in leaving)
    coming = sum(each.unseen_on(index) for each in staying)
    by_ledger = device.total_bytes - sum(each.on(index) for each in staying)
    return max(0, min(device.free_bytes + back - coming, by_ledger))


def decide(claim: Claim, holdings: Sequence[Holding], house: House) -> Decision:
    """The best that can be done for one claim now: place it, evict for it, wait for it, or refuse it.

    Earlier claims go first: a later one takes no device that an earlier one waits for.
    """
    scene = _Scene(claim, holdings, house)
    nobody: frozenset[Generation] = frozenset()
    for option in claim.options:
        if not scene.promised(option) and not scene.behind and _room(scene, option, nobody):
            return Place(option)
    decisions = [_make_room(scene, option) for option in claim.options]
    for wanted in (Evict, Await):
        found = [each for each in decisions if isinstance(each, wanted)]
        if found:
            return min(found, key=_cost)
    hopeless = all(isinstance(each, Refused) and each.reason == "too_large" for each in decisions)
    if hopeless and claim.last_resort:
        spilling = decide(Claim(claim.owner, claim.last_resort), holdings, house)
        return decisions[0] if isinstance(spilling, Refused) and spilling.reason == "too_large" else spilling
    return decisions[0]


def _cost(decision: Decision) -> int:
    match decision:
        case Evict(victims=victims):
            return len(victims)
        case Await(yielding=yielding, leaving=leaving):
            return len(yielding) + len(leaving)
        case _:
            return 0


def _make_room(scene: _Scene, option: Option) -> Decision:
    everybody = frozenset(each.owner for each in scene.holdings)
    tightest = min(option.devices, key=lambda device: scene.free(device, everybody))
    possible, free = scene.free(tightest, everybody), scene.free(tightest, frozenset())
    if not scene.fits(option, everybody):
        return Refused(option, free, possible, "too_large")
    leaving = [each for each in scene.holdings if each.standing == "leaving"]
    gone = frozenset(each.owner for each in leaving)
    if _room(scene, option, gone):
        return Await(option, (), _named(leaving), not scene.counts(frozenset()))
    if not scene.house.evicts:
        return _refused(scene, option, free, possible, scene.holdings)
    victims = _victims(scene, option, gone, ("idle",))
    if victims is not None:
        if scene.promised(option) or scene.behind:
            return Await(option, (), _named(leaving), not scene.counts(frozenset()))
        return Evict(option, _named(victims), not scene.counts(frozenset()))
    movable = _victims(scene, option, gone, ("idle", "busy"))
    if movable is not None:
        return Await(option, _named(movable), _named(leaving), not scene.counts(frozenset()))
    return _refused(scene, option, free, possible, [each for each in scene.holdings if each.standing == "fixed"])


def _room(scene: _Scene, option: Option, gone: frozenset[Generation]) -> bool:
    return scene.counts(gone) and scene.fits(option, gone)


def _victims(
    scene: _Scene, option: Option, gone: frozenset[Generation], standings: tuple[Standing, ...]
) -> list[Holding] | None:
    """Least recently used first, idle before busy, and only those that help; None when all of them are not enough."""
    chosen: list[Holding] = []
    order = sorted(
        (each for each in scene.holdings if each.standing in standings),
        key=lambda each: (each.standing == "busy", each.last_used, each.owner),
    )
    for each in order:
        if _room(scene, option, gone):
            break
        if _helps(scene, option, each, gone):
            chosen.append(each)
            gone |= {each.owner}
    if not _room(scene, option, gone):
        return None
    # One that was taken early may be needless beside a bigger one that came later.
    for each in list(chosen):
        if _room(scene, option, gone - {each.owner}):
            chosen.remove(each)
            gone -= {each.owner}
    return chosen


def _helps(scene: _Scene, option: Option, each: Holding, gone: frozenset[Generation]) -> bool:
    short = any(each.on(device.index) and scene.free(device, gone) < wanted for device, wanted in option.pools)
    return short or not scene.counts(gone)


def _refused(scene: _Scene, option: Option, free: int, possible: int, holders: Sequence[Holding]) -> Refused:
    here = [each for each in holders if any(each.on(device.index) for device, _ in option.pools)]
    count = scene.fits(option, frozenset())
    return Refused(option, free, possible, "count" if count else "held", _named(holders if count else here))


def _named(holdings: Sequence[Holding]) -> tuple[Generation, ...]:
    return tuple(sorted(each.owner for each in holdings))
