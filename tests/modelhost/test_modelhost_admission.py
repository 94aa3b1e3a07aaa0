"""The admission queue: examples, and laws under any order of arrivals, releases and departures."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbproxy.modelhost.core.admission import AdmissionQueue, Grant, Seat
from sbproxy.modelhost.core.status import PRIORITIES, Priority


def opened(max_active: int = 1, max_depth: int = 10) -> tuple[AdmissionQueue, Seat]:
    queue = AdmissionQueue(max_active, max_depth, max_active)
    seat, granted = queue.open_seat()
    assert granted == []
    return queue, seat


def tickets(granted: list[Grant]) -> list[int]:
    return [ticket for ticket, _ in granted]


def test_granted_at_once_only_with_room_and_an_empty_queue() -> None:
    queue, _ = opened(2)
    assert queue.try_grant()
    assert queue.join(1, "batch")
    assert not queue.try_grant()
    queue.leave(1)
    assert queue.try_grant()
    assert not queue.try_grant()


def test_classes_in_order_and_fifo_within() -> None:
    queue, seat = opened()
    queue.try_grant()
    for ticket, priority in enumerate(("batch", "standard", "interactive", "standard", "interactive")):
        assert queue.join(ticket, priority)  # type: ignore[arg-type]
    assert [queue.position(ticket) for ticket in range(5)] == [5, 3, 1, 4, 2]
    assert [tickets(queue.release(seat)) for _ in range(5)] == [[2], [4], [1], [3], [0]]


def test_depth_zero_queues_nobody_but_wakes_cold_engines() -> None:
    queue = AdmissionQueue(2, 0, 4)
    assert [queue.join(ticket, "standard") for ticket in range(5)] == [True] * 4 + [False]
    assert tickets(queue.open_seat()[1]) == [0, 1]
    assert tickets(queue.open_seat()[1]) == [2, 3]
    assert not queue.join(5, "standard")


def test_a_grant_goes_to_the_least_loaded_open_seat() -> None:
    queue, first = opened(3)
    assert queue.try_grant() is first
    second, _ = queue.open_seat()
    assert [queue.try_grant() for _ in range(5)] == [second, first, second, first, second]
    assert queue.try_grant() is None
    queue.close_seat(first)
    assert queue.release(first) == []
    assert queue.try_grant() is None, "a closed seat grants nothing, though it has a place"
    queue.remove_seat(first)
    assert (queue.active, queue.release(first)) == (3, [])


def test_a_doubted_seat_is_used_when_there_is_no_other() -> None:
    queue, first = opened(1)
    second, _ = queue.open_seat()
    first.doubted = True
    assert [queue.try_grant() for _ in range(3)] == [second, first, None]


def test_a_closed_seat_grants_nobody_and_all_are_refused_in_order() -> None:
    queue, seat = opened()
    queue.try_grant()
    for ticket, priority in ((1, "batch"), (2, "interactive"), (3, "batch")):
        queue.join(ticket, priority)  # type: ignore[arg-type]
    queue.leave(3)
    queue.close_seat(seat)
    assert queue.release(seat) == []
    assert queue.reject_all() == [2, 1]
    assert (queue.active, queue.waiting) == (0, 0)


def test_newcomers_are_parked_while_somebody_else_needs_the_room() -> None:
    queue, seat = opened()
    queue.try_grant()
    queue.join(1, "batch")
    queue.hold()
    queue.join(2, "interactive")
    assert (queue.due, queue.waiting, queue.position(1), queue.position(2)) == (1, 2, 1, 2)
    assert tickets(queue.release(seat)) == [1], "who came before is served"
    assert queue.release(seat) == []
    assert queue.try_grant() is None
    queue.join(3, "batch")
    assert tickets(queue.resume()) == [2]
    assert tickets(queue.release(seat)) == [3]


def test_parked_callers_count_against_the_depth() -> None:
    queue, _ = opened(1, 1)
    queue.hold()
    assert [queue.join(ticket, "standard") for ticket in range(3)] == [True, True, False]


class QueueLaws(RuleBasedStateMachine):
    """A model of the queue beside the queue: a plain list that is sorted each time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AdmissionQueue(2, 4, 4)
        self.model: list[tuple[int, int]] = []
        self.parked: list[tuple[int, int]] = []
        self.running: dict[Seat, int] = {}
        self.ticket = 0

    def granted(self, grants: list[Grant]) -> None:
        for ticket, seat in grants:
            assert ticket == min(self.model)[1], "the first in (priority, arrival) order runs next"
            self.model.remove(min(self.model))
            self.running[seat] += 1

    @rule(priority=st.sampled_from(PRIORITIES))
    def arrive(self, priority: Priority) -> None:
        seat = self.queue.try_grant()
        if seat is not None:
            assert not self.model
            assert not self.queue.holding
            self.running[seat] += 1
            return
        self.ticket += 1
        room = 4 + (4 if self.queue.holding or not self.queue.is_open else 0)
        waiting = len(self.model) + len(self.parked)
        assert self.queue.join(self.ticket, priority) == (waiting < room)
        if waiting < room:
            entry = (PRIORITIES.index(priority), self.ticket)
            (self.parked if self.queue.holding else self.model).append(entry)

    @precondition(lambda self: len(self.running) < 3)
    @rule()
    def open(self) -> None:
        before = set(self.queue._seats)
        seat, grants = self.queue.open_seat()
        assert seat not in before
        self.running[seat] = 0
        self.granted(grants)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), end=st.booleans())
    def close(self, data: st.DataObject, end: bool) -> None:
        seat = data.draw(st.sampled_from(list(self.running)))
        self.queue.close_seat(seat)
        if end:
            self.queue.remove_seat(seat)
            del self.running[seat]

    @precondition(lambda self: any(self.running.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from([seat for seat, count in self.running.items() if count]))
        self.running[seat] -= 1
        self.granted(self.queue.release(seat))

    @precondition(lambda self: self.model or self.parked)
    @rule(data=st.data())
    def depart(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.model + self.parked))
        (self.model if entry in self.model else self.parked).remove(entry)
        self.queue.leave(entry[1])

    @rule()
    def hold(self) -> None:
        self.queue.hold()

    @rule()
    def resume(self) -> None:
        self.model += self.parked
        self.parked = []
        self.granted(self.queue.resume())

    @rule()
    def reject(self) -> None:
        expected = [ticket for _, ticket in sorted(self.model)] + [ticket for _, ticket in self.parked]
        assert self.queue.reject_all() == expected
        self.model, self.parked = [], []

    @invariant()
    def agrees(self) -> None:
        assert self.queue.active == sum(self.running.values())
        assert (self.queue.due, self.queue.waiting) == (len(self.model), len(self.model) + len(self.parked))
        assert all(count <= 2 for count in self.running.values())

    @invariant()
    def nobody_sleeps_beside_a_free_place(self) -> None:
        free = any(seat.is_open and count < 2 for seat, count in self.running.items())
        assert not (free and self.model)


TestQueueLaws = QueueLaws.TestCase
TestQueueLaws.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


@given(st.lists(st.sampled_from(PRIORITIES), max_size=40))
def test_everybody_is_served_once(priorities: list[Priority]) -> None:
    queue = AdmissionQueue(1, 100, 1)
    for ticket, priority in enumerate(priorities):
        queue.join(ticket, priority)
    seat, grants = queue.open_seat()
    served = tickets(grants)
    while queue.active:
        served += tickets(queue.release(seat))
    assert served == sorted(range(len(priorities)), key=lambda t: (PRIORITIES.index(priorities[t]), t))


def test_tickets_that_leave_do_not_pile_up() -> None:
    queue, seat = opened(1, 64)
    assert queue.try_grant()
    assert queue.join(1, "standard")
    for ticket in range(2, 5000):
        assert queue.join(ticket, "standard")
        queue.leave(ticket)
    assert queue.join(5000, "interactive")
    assert len(queue._order) < 200
    assert tickets(queue.release(seat)) == [5000]
    assert tickets(queue.release(seat)) == [1]
