"""The admission queue: examples, and laws under any order of arrivals, releases and departures."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbproxy.modelhost.core.admission import AdmissionQueue
from sbproxy.modelhost.core.status import PRIORITIES, Priority


def opened(max_active: int = 1, max_depth: int = 10) -> AdmissionQueue:
    queue = AdmissionQueue(max_active, max_depth)
    queue.open()
    return queue


def test_granted_at_once_only_with_room_and_an_empty_queue() -> None:
    queue = opened(2)
    assert queue.try_grant()
    assert queue.join(1, "batch")
    assert not queue.try_grant()
    queue.leave(1)
    assert queue.try_grant()
    assert not queue.try_grant()


def test_classes_in_order_and_fifo_within() -> None:
    queue = opened()
    queue.try_grant()
    for ticket, priority in enumerate(("batch", "standard", "interactive", "standard", "interactive")):
        assert queue.join(ticket, priority)  # type: ignore[arg-type]
    assert [queue.release() for _ in range(5)] == [[2], [4], [1], [3], [0]]


def test_depth_zero_queues_nobody_but_wakes_a_cold_engine() -> None:
    queue = AdmissionQueue(2, 0)
    assert [queue.join(ticket, "standard") for ticket in range(3)] == [True, True, False]
    assert queue.open() == [0, 1]
    assert not queue.join(3, "standard")


def test_a_closed_queue_grants_nobody_and_refuses_all_in_order() -> None:
    queue = opened()
    queue.try_grant()
    for ticket, priority in ((1, "batch"), (2, "interactive"), (3, "batch")):
        queue.join(ticket, priority)  # type: ignore[arg-type]
    queue.leave(3)
    queue.close()
    assert queue.release() == []
    assert queue.reject_all() == [2, 1]
    assert (queue.active, queue.waiting) == (0, 0)


class QueueLaws(RuleBasedStateMachine):
    """A model of the queue beside the queue: a plain list that is sorted each time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AdmissionQueue(2, 4)
        self.model: list[tuple[int, int]] = []
        self.active = 0
        self.ticket = 0

    def granted(self, tickets: list[int]) -> None:
        for ticket in tickets:
            assert ticket == min(self.model)[1], "the first in (priority, arrival) order runs next"
            self.model.remove(min(self.model))
            self.active += 1

    @rule(priority=st.sampled_from(PRIORITIES))
    def arrive(self, priority: Priority) -> None:
        if self.queue.try_grant():
            assert not self.model
            self.active += 1
            return
        self.ticket += 1
        room = 4 + (0 if self.queue.is_open else 2)
        assert self.queue.join(self.ticket, priority) == (len(self.model) < room)
        if len(self.model) < room:
            self.model.append((PRIORITIES.index(priority), self.ticket))

    @rule()
    def open(self) -> None:
        self.granted(self.queue.open())

    @rule()
    def close(self) -> None:
        self.queue.close()

    @precondition(lambda self: self.active > 0)
    @rule()
    def release(self) -> None:
        self.active -= 1
        self.granted(self.queue.release())

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def depart(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.model))
        self.model.remove(entry)
        self.queue.leave(entry[1])

    @rule()
    def reject(self) -> None:
        assert self.queue.reject_all() == [ticket for _, ticket in sorted(self.model)]
        self.model.clear()

    @invariant()
    def agrees(self) -> None:
        assert (self.queue.active, self.queue.waiting) == (self.active, len(self.model))
        assert self.queue.active <= 2

    @invariant()
    def nobody_sleeps_beside_a_free_place(self) -> None:
        assert not (self.queue.is_open and self.model and self.active < 2)


TestQueueLaws = QueueLaws.TestCase
TestQueueLaws.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.sampled_from(PRIORITIES), max_size=40))
def test_everybody_is_served_once(priorities: list[Priority]) -> None:
    queue = AdmissionQueue(1, 100)
    for ticket, priority in enumerate(priorities):
        queue.join(ticket, priority)
    served = queue.open()
    while queue.active:
        served += queue.release()
    assert served == sorted(range(len(priorities)), key=lambda t: (PRIORITIES.index(priorities[t]), t))


def test_tickets_that_leave_do_not_pile_up() -> None:
    queue = AdmissionQueue(1, 64)
    queue.open()
    assert queue.try_grant()
    assert queue.join(1, "standard")
    for ticket in range(2, 5000):
        assert queue.join(ticket, "standard")
        queue.leave(ticket)
    assert queue.join(5000, "interactive")
    assert len(queue._order) < 200
    assert queue.release() == [5000]
    assert queue.release() == [1]
