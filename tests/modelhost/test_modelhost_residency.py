"""Who leaves for whom: the pure decision, and its laws over random machines."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from sbproxy.devices.core.model import Device
from sbproxy.modelhost.core.placement import Option
from sbproxy.modelhost.core.residency import (
    Await,
    Claim,
    Evict,
    Holding,
    House,
    Place,
    Refused,
    Round,
    Standing,
    decide,
    free_bytes,
)
from sbproxy.modelhost.core.status import MemoryEstimate


def device(index: int = 0, total: int = 100, free: int | None = None) -> Device:
    return Device(index, "cuda", f"card{index}", total, total if free is None else free)


def option(need: int, *devices: Device, floor: int = 0) -> Option:
    chosen = devices or (device(),)
    return Option(chosen, MemoryEstimate(tuple(each.index for each in chosen), need, 0, 0, 0), floor)


def claim(*options: Option, name: str = "new") -> Claim:
    return Claim((name, 1), options)


def holding(name: str, size: int, standing: Standing = "idle", used: float = 0.0, index: int = 0) -> Holding:
    return Holding((name, 1), {index: size}, standing, used)


def test_there_is_room() -> None:
    wanted = option(60)
    assert decide(claim(wanted), [holding("a", 40)], House()) == Place(wanted)


def test_the_smaller_of_driver_and_ledger_counts() -> None:
    assert free_bytes(device(free=90), [], frozenset()) == 90
    assert free_bytes(device(free=90), [holding("a", 30)], frozenset()) == 70
    assert free_bytes(device(free=20), [holding("a", 30)], frozenset()) == 20
    assert free_bytes(device(free=20), [holding("a", 30)], frozenset({("a", 1)})) == 50
    assert free_bytes(device(), [holding("a", 300)], frozenset()) == 0


def test_the_least_recently_used_idle_one_leaves() -> None:
    held = [holding("old", 40, used=1), holding("new", 40, used=2)]
    wanted = option(50, device(free=20))
    assert decide(claim(wanted, name="x"), held, House()) == Evict(wanted, (("old", 1),))


def test_nobody_leaves_who_does_not_help() -> None:
    held = [holding("elsewhere", 90, index=1, used=1), holding("small", 10, used=2), holding("big", 80, used=3)]
    wanted = option(85, device(free=10))
    assert decide(claim(wanted), held, House()) == Evict(wanted, (("big", 1),))


def test_the_busy_are_asked_to_yield_and_never_evicted() -> None:
    held = [holding("busy", 60, "busy", 1), holding("idle", 20, "idle", 2)]
    wanted = option(90, device(free=20))
    assert decide(claim(wanted), held, House()) == Await(wanted, (("busy", 1), ("idle", 1)), ())


def test_who_leaves_already_is_waited_for() -> None:
    held = [holding("going", 60, "leaving", 9), holding("idle", 20, "idle", 1)]
    wanted = option(70, device(free=20))
    assert decide(claim(wanted), held, House()) == Await(wanted, (), (("going", 1),))


def test_the_pinned_stay_and_the_refusal_names_them() -> None:
    held = [holding("pinned", 60, "fixed")]
    wanted = option(70, device(free=40))
    assert decide(claim(wanted), held, House()) == Refused(wanted, 40, 100, "held", (("pinned", 1),))


def test_what_fits_no_empty_device_evicts_nobody() -> None:
    held = [holding("idle", 60)]
    wanted = option(101, device(free=40))
    assert decide(claim(wanted), held, House()) == Refused(wanted, 40, 100, "too_large")
    beside_foreign = option(90, device(free=15))
    assert decide(claim(beside_foreign), held, House()) == Refused(beside_foreign, 15, 75, "too_large")


def test_eviction_never_refuses_instead() -> None:
    held = [holding("idle", 60)]
    wanted = option(70, device(free=40))
    assert decide(claim(wanted), held, House(evicts=False)) == Refused(wanted, 40, 100, "held", (("idle", 1),))


def test_the_number_of_models_is_one_count_over_all_devices() -> None:
    held = [holding("a", 1, used=2), holding("b", 1, used=1, index=1)]
    wanted = option(1)
    assert decide(claim(wanted), held, House(2)) == Evict(wanted, (("b", 1),), for_count=True)
    assert decide(claim(wanted, name="a"), held, House(2)) == Place(wanted), "another generation of a resident model"
    assert decide(claim(wanted), [holding("p", 1, "fixed")], House(1)) == Refused(wanted, 99, 100, "count", (("p", 1),))
    busy = [holding("a", 1, "busy")]
    assert decide(claim(wanted), busy, House(1)) == Await(wanted, (("a", 1),), (), for_count=True)


def test_later_claims_take_nothing_that_an_earlier_one_waits_for() -> None:
    first, second = option(50), option(50, device(1))
    assert decide(claim(first), [], House(promised=frozenset({0}))) == Await(first, (), ())
    assert decide(claim(first, second), [], House(promised=frozenset({0}))) == Place(second)
    assert decide(claim(first), [holding("a", 1)], House(2, count_promised=True)) == Await(first, (), ())
    assert decide(claim(first, name="a"), [holding("a", 1)], House(2, count_promised=True)) == Place(first)


def test_an_eviction_on_one_card_keeps_nobody_from_another() -> None:
    now, free = Round(House()), option(50, device(1))
    assert isinstance(now.decide(claim(option(50, device(free=10)), name="x"), [holding("a", 90)]), Evict)
    assert now.decide(claim(free, name="y"), [holding("a", 90)]) == Place(free)


def test_a_spare_replica_takes_what_is_idle_and_makes_nobody_yield() -> None:
    wanted = option(50, device(free=10))
    spare = Claim(("x", 1), [wanted], urgency="spare")
    assert isinstance(Round(House()).decide(spare, [holding("a", 90)]), Evict)
    now = Round(House())
    assert now.decide(spare, [holding("a", 90, "busy")]) == Await(wanted, (), ())
    assert (now.yielding, now.house) == (set(), House())


def test_nobody_leaves_for_what_nobody_waits_for() -> None:
    wanted, now = option(50, device(free=10)), Round(House())
    unwanted = Claim(("x", 1), [wanted], urgency="unwanted")
    assert now.decide(unwanted, [holding("a", 90)]) == Await(wanted, (), ())
    assert now.house == House()
    assert now.decide(Claim(("x", 1), [option(5)], urgency="unwanted"), []) == Place(option(5))


def test_what_loads_is_not_counted_twice() -> None:
    loading = [Holding(("a", 1), {0: 30}, "busy", 0, {0: 30})]
    assert free_bytes(device(free=60), loading, frozenset()) == 30
    assert free_bytes(device(free=60), loading, frozenset({("a", 1)})) == 60
    wanted = option(50, device(free=60))
    assert decide(claim(wanted), loading, House()) == Await(wanted, (("a", 1),), ())


def test_memory_that_a_driver_gives_back_late_refuses_and_displaces_nobody() -> None:
    wanted = option(70, device(free=10))
    assert isinstance(Round(House()).decide(claim(wanted), []), Refused)
    late = Round(House(), settling=True)
    assert (late.decide(claim(wanted), []), late.look_again) == (Await(wanted, (), ()), True)
    late = Round(House(), settling=True)
    assert isinstance(late.decide(claim(option(101, device(free=10))), []), Refused), "no empty device would do"
    two = option(30, device(free=10))
    held = [holding("idle", 30)]
    assert Round(House(), settling=True).decide(claim(two), held, expects=True) == Await(two, (), ())
    assert isinstance(Round(House(), settling=True).decide(claim(two), held), Evict)
    big, spilt = option(70, device(free=10)), option(5, device(free=10))
    late = Round(House(), settling=True)
    assert late.decide(Claim(("x", 1), [big], [spilt]), []) == Await(big, (), ()), "no slow place for a late driver"


def test_the_cheapest_way_wins() -> None:
    held = [holding("a", 50), holding("b", 50), holding("c", 90, index=1)]
    both, one = option(90, device(free=0)), option(90, device(1, free=10))
    assert decide(claim(both, one), held, House()) == Evict(one, (("c", 1),))


STANDINGS = st.sampled_from(["idle", "busy", "leaving", "fixed"])


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Claim, list[Holding], House]:
    devices = [device(index, draw(st.integers(50, 200))) for index in range(draw(st.integers(1, 3)))]
    held: list[Holding] = []
    room = {each.index: each.total_bytes for each in devices}
    for number in range(draw(st.integers(0, 6))):
        index = draw(st.sampled_from(sorted(room)))
        size = draw(st.integers(0, room[index]))
        room[index] -= size
        held.append(Holding((f"d{number}", 1), {index: size}, draw(STANDINGS), draw(st.floats(0, 9))))
    foreign = {index: draw(st.integers(0, left)) for index, left in room.items()}
    now = [device(each.index, each.total_bytes, room[each.index] - foreign[each.index]) for each in devices]
    wanted = [option(draw(st.integers(1, 250)), *draw(st.permutations(now))[: draw(st.integers(1, len(now)))])]
    if draw(st.booleans()):
        wanted.append(option(draw(st.integers(1, 250)), now[0]))
    house = House(draw(st.one_of(st.none(), st.integers(1, 4))), draw(st.booleans()))
    return claim(*wanted), held, house


def standing_of(held: list[Holding]) -> Mapping[tuple[str, int], Standing]:
    return {each.owner: each.standing for each in held}


@settings(max_examples=200)
@given(scenes())
def test_no_device_is_ever_given_more_than_it_has(scene: tuple[Claim, list[Holding], House]) -> None:
    asked, held, house = scene
    decision = decide(asked, held, house)
    gone: frozenset[tuple[str, int]] = frozenset()
    if isinstance(decision, Evict):
        gone = frozenset(decision.victims) | {each.owner for each in held if each.standing == "leaving"}
    if isinstance(decision, Place | Evict):
        for each in decision.option.devices:
            reserved = sum(one.on(each.index) for one in held if one.owner not in gone)
            assert reserved + decision.option.need.total_bytes <= each.total_bytes
            assert decision.option.need.total_bytes <= free_bytes(each, held, gone)
        staying = {one.owner[0] for one in held if one.owner not in gone} | {"new"}
        assert house.max_resident_models is None or len(staying) <= house.max_resident_models


@settings(max_examples=200)
@given(scenes())
def test_only_idle_ones_are_evicted_and_none_needlessly(scene: tuple[Claim, list[Holding], House]) -> None:
    asked, held, house = scene
    decision = decide(asked, held, house)
    if not isinstance(decision, Evict):
        return
    standing = standing_of(held)
    assert house.evicts
    assert all(standing[victim] == "idle" for victim in decision.victims)
    for spared in decision.victims:
        gone = frozenset(decision.victims) - {spared}
        fits = all(
            free_bytes(each, held, gone | {o.owner for o in held if o.standing == "leaving"})
            >= decision.option.wanted_bytes
            for each in decision.option.devices
        )
        left = {o.owner[0] for o in held if o.owner not in gone and o.standing != "leaving"} | {"new"}
        assert not fits or (house.max_resident_models is not None and len(left) > house.max_resident_models)


@settings(max_examples=200)
@given(scenes())
def test_a_refusal_is_final(scene: tuple[Claim, list[Holding], House]) -> None:
    """Only the fixed, foreign memory or the policy can be behind it: waiting would be in vain."""
    asked, held, house = scene
    decision = decide(asked, held, house)
    if not isinstance(decision, Refused) or not house.evicts:
        return
    movable = frozenset(each.owner for each in held if each.standing != "fixed")
    staying = {each.owner[0] for each in held if each.owner not in movable} | {"new"}
    crowded = house.max_resident_models is not None and len(staying) > house.max_resident_models
    for wanted in asked.options:
        fits = all(free_bytes(each, held, movable) >= wanted.wanted_bytes for each in wanted.devices)
        assert crowded or not fits or wanted is not decision.option
