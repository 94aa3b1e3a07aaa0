"""Admission and placement composed on a simulated clock, thousands of times: queues, rounds of decisions, and no loop.

The small host below does what ``gate``, ``deployment`` and ``residency`` do, with nothing but their pure cores.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sbproxy.devices.core.model import Device
from sbproxy.modelhost.core.admission import AdmissionQueue, Grant, Seat
from sbproxy.modelhost.core.placement import Option
from sbproxy.modelhost.core.residency import Claim, Evict, Generation, Holding, House, Place, Refused, Round, Standing
from sbproxy.modelhost.core.status import PRIORITIES, MemoryEstimate

SEEDS = 2000


@dataclass(eq=False)
class Flat:
    """One deployment of the town: a queue in front of at most one engine."""

    name: str
    need: int
    devices: tuple[int, ...]
    load_s: float
    queue: AdmissionQueue
    state: str = "cold"
    seat: Seat | None = None
    option: Option | None = None
    used_at: float = 0
    run: int = 0

    @property
    def owner(self) -> Generation:
        return self.name, 1

    @property
    def busy(self) -> bool:
        return self.state == "loading" or self.queue.active > 0 or self.queue.due > 0

    @property
    def standing(self) -> Standing:
        return "leaving" if self.state == "leaving" else "busy" if self.busy else "idle"


@dataclass
class Town:
    """Deployments on a few devices, a clock, and everybody who ever asked."""

    chance: random.Random
    flats: list[Flat]
    totals: list[int]
    house: House
    work_s: Callable[[], float]
    now: float = 0
    claims: list[Flat] = field(default_factory=list)
    yielding: set[Generation] = field(default_factory=set)
    waiting: dict[int, tuple[Flat, float]] = field(default_factory=dict)
    waited: list[float] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("served", "left", "refused"), 0))
    on_served: Callable[[Flat], None] = lambda flat: None
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # --- the clock ----------------------------------------------------------------------------------------------------

    def after(self, seconds: float, deed: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + seconds, next(self._numbers), deed))

    def run(self) -> None:
        while self._agenda:
            self.now, _, deed = heapq.heappop(self._agenda)
            deed()
            self.decide()
            self.check()

    # --- callers ------------------------------------------------------------------------------------------------------

    def ask(self, flat: Flat, patience_s: float | None = None) -> None:
        seat = flat.queue.try_grant()
        if seat is not None:
            self.waited.append(0)
            self.work(flat, seat)
            return
        ticket = next(self._numbers)
        if not flat.queue.join(ticket, self.chance.choice(PRIORITIES)):
            self.ended["refused"] += 1
            return
        self.waiting[ticket] = (flat, self.now)
        if patience_s is not None:
            self.after(patience_s, lambda: self.leave(ticket))
        if flat.state == "cold":
            flat.state = "claiming"
            self.claims.append(flat)

    def leave(self, ticket: int) -> None:
        if ticket not in self.waiting:
            return
        flat, _ = self.waiting.pop(ticket)
        flat.queue.leave(ticket)
        self.ended["left"] += 1
        if flat.state == "claiming" and not flat.queue.waiting:
            flat.state = "cold"
            self.claims.remove(flat)

    def grant(self, flat: Flat, granted: list[Grant]) -> None:
        for ticket, seat in granted:
            owner, since = self.waiting.pop(ticket)
            assert owner is flat
            self.waited.append(self.now - since)
            self.work(flat, seat)

    def work(self, flat: Flat, seat: Seat) -> None:
        assert seat is flat.seat, "granted on an engine that is gone"

        def done() -> None:
            self.ended["served"] += 1
            gone = seat is not flat.seat
            self.grant(flat, flat.queue.release(seat))
            flat.used_at = self.now
            if not gone and flat.state == "leaving" and seat.active == 0:
                self.end(flat)
            self.on_served(flat)

        self.after(self.work_s(), done)

    # --- engines ------------------------------------------------------------------------------------------------------

    def load(self, flat: Flat, option: Option) -> None:
        flat.option, flat.state = option, "loading"
        flat.run += 1
        run = flat.run

        def ready() -> None:
            if flat.run != run or flat.state != "loading":
                return
            flat.state, flat.used_at = "ready", self.now
            flat.seat, granted = flat.queue.open_seat()
            self.grant(flat, granted)

        self.after(flat.load_s, ready)

    def drain(self, flat: Flat, *, refuse: bool) -> None:
        """Close the doors. ``refuse``: an operator stops it, and turns away who waits."""
        if refuse:
            self.refuse(flat)
        if flat.state == "claiming" and refuse:
            self.claims.remove(flat)
            flat.state = "cold"
        if flat.state not in ("loading", "ready"):
            return
        flat.state = "leaving"
        if flat.seat is not None:
            flat.queue.close_seat(flat.seat)
        if flat.queue.active == 0:
            self.end(flat)

    def end(self, flat: Flat) -> None:
        """The process takes a moment to end, and its memory is booked until then."""
        run = flat.run
        self.after(0.2, lambda: self.gone(flat) if flat.run == run and flat.state == "leaving" else None)

    def crash(self, flat: Flat) -> None:
        if flat.state in ("loading", "ready", "leaving"):
            self.refuse(flat)
            self.gone(flat)

    def refuse(self, flat: Flat) -> None:
        for ticket in flat.queue.reject_all():
            del self.waiting[ticket]
            self.ended["refused"] += 1

    def gone(self, flat: Flat) -> None:
        if flat.seat is not None:
            flat.queue.remove_seat(flat.seat)
        flat.seat = flat.option = None
        flat.run += 1
        flat.state = "cold"
        self.grant(flat, flat.queue.resume())
        self.yielding.discard(flat.owner)
        if flat.queue.waiting:
            flat.state = "claiming"
            self.claims.append(flat)

    # --- room ---------------------------------------------------------------------------------------------------------

    def holdings(self) -> list[Holding]:
        return [
            Holding(flat.owner, flat.option.taken, flat.standing, self.now if flat.busy else flat.used_at)
            for flat in self.flats
            if flat.option is not None
        ]

    def decide(self) -> None:
        if not (self.claims or self.yielding):
            return
        now = Round(self.house)
        by_owner = {flat.owner: flat for flat in self.flats}
        for flat in list(self.claims):
            options = [_option(flat.need, index, self.totals[index]) for index in flat.devices]
            match now.decide(Claim(flat.owner, options), self.holdings()):
                case Place(option=option):
                    self.claims.remove(flat)
                    self.load(flat, option)
                case Evict(victims=victims):
                    for victim in victims:
                        assert not by_owner[victim].busy, "evicted at work"
                        self.drain(by_owner[victim], refuse=False)
                case Refused() as refused:
                    pytest.fail(f"{flat.name} was refused: {refused}")
        for owner in self.yielding - now.yielding:
            self.grant(by_owner[owner], by_owner[owner].queue.resume())
        for owner in now.yielding - self.yielding:
            by_owner[owner].queue.hold()
        self.yielding = now.yielding

    def check(self) -> None:
        held = [flat.option.taken for flat in self.flats if flat.option is not None]
        for index, total in enumerate(self.totals):
            assert sum(taken.get(index, 0) for taken in held) <= total, "a device holds more than it has"
        assert self.house.max_resident_models is None or len(held) <= self.house.max_resident_models
        waiting = Counter(flat.name for flat, _ in self.waiting.values())
        for flat in self.flats:
            assert flat.queue.active <= flat.queue.max_active, "over the cap"
            open_place = flat.seat is not None and flat.seat.is_open and flat.seat.active < flat.queue.max_active
            assert not (open_place and flat.queue.due), "somebody waits beside a free place"
            assert flat.queue.waiting == waiting[flat.name], "lost from the queue"
            assert (flat.owner in self.yielding) == flat.queue.holding


def _option(need: int, index: int, total: int) -> Option:
    card = Device(index, "cuda", f"card{index}", total, total)
    return Option((card,), MemoryEstimate((index,), need, 0, 0, 0))


def town(chance: random.Random, *, flats: int, cards: int, limit: int | None) -> Town:
    totals = [chance.randint(60, 100) for _ in range(cards)]
    made = [
        Flat(
            name=f"d{number}",
            need=chance.randint(20, 60),
            devices=tuple(chance.sample(range(cards), chance.randint(1, cards))),
            load_s=chance.uniform(0.5, 5),
            queue=AdmissionQueue(cap := chance.randint(1, 3), chance.choice((0, 2, 50)), cap),
        )
        for number in range(flats)
    ]
    return Town(chance, made, totals, House(limit), lambda: chance.uniform(0.01, 2))


def storm(chance: random.Random) -> None:
    place = town(chance, flats=chance.randint(1, 5), cards=chance.randint(1, 3), limit=chance.choice((None, 1, 2)))
    asked = chance.randint(5, 25)
    for _ in range(asked):
        flat, patience = chance.choice(place.flats), chance.choice((None, None, 0.5, 5.0))
        place.after(chance.uniform(0, 10), lambda flat=flat, patience=patience: place.ask(flat, patience))
    for _ in range(chance.randint(0, 8)):
        flat = chance.choice(place.flats)
        deeds: tuple[Callable[[Flat], None], ...] = (
            place.crash,
            lambda flat: place.drain(flat, refuse=True),
            lambda flat: None if flat.busy else place.drain(flat, refuse=False),
        )
        deed = chance.choice(deeds)
        place.after(chance.uniform(0, 15), lambda flat=flat, deed=deed: deed(flat))
    place.run()
    assert place.waiting == {}, "waits for ever"
    assert sum(place.ended.values()) == asked
    assert (place.claims, place.yielding) == ([], set())


@pytest.mark.parametrize("part", range(8))
def test_storms_grant_nothing_over_the_cap_and_lose_nobody(part: int) -> None:
    """Nobody's patience saves a lost caller here: most of them wait for ever, and are all served or refused."""
    for seed in range(part, SEEDS, 8):
        try:
            storm(random.Random(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("part", range(4))
def test_everybody_is_served_within_a_round_of_loads_and_work(part: int) -> None:
    """N deployments on one slot, callers that ask again at once: nobody waits longer than N x (load + work), where
    the work of one turn is that of all who may be due in it."""
    for seed in range(part, 80, 4):
        chance = random.Random(seed)
        place = town(chance, flats=chance.randint(2, 5), cards=1, limit=1)
        callers, work_s = chance.randint(1, 6), chance.uniform(0.05, 1)
        place.work_s = lambda work_s=work_s: work_s
        left = {flat.name: 5 * callers for flat in place.flats}

        def again(flat: Flat, left: dict[str, int] = left, place: Town = place) -> None:
            if left[flat.name] > 0:
                left[flat.name] -= 1
                place.after(0, lambda: place.ask(flat))

        place.on_served = again
        for flat in place.flats:
            flat.queue.max_depth = 50
            for _ in range(callers):
                again(flat)
        place.run()
        assert place.waiting == {}
        turns = [flat.load_s + 0.2 + (-(-callers // flat.queue.max_active) + 1) * work_s for flat in place.flats]
        assert max(place.waited) <= sum(turns) + max(turns), f"seed {seed}"
        assert place.ended == {"served": 5 * callers * len(place.flats), "left": 0, "refused": 0}
