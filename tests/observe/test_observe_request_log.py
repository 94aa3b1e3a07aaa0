"""The ring: numbering, pages, followers and their gaps."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbproxy.observe.core.request_filter import RequestFilter, parse_filter
from sbproxy.observe.request_log import MAX_LAG, Gap, Numbered, RequestFollower, RequestLog
from support.admin_world import request_record


def filled(count: int, size: int = 10) -> RequestLog:
    log = RequestLog(size)
    for number in range(1, count + 1):
        log.append(request_record(number))
    return log


def shape(items: list[Numbered | Gap]) -> list[int | tuple[int, int]]:
    return [(item.first, item.last) if isinstance(item, Gap) else item.sequence for item in items]


def test_numbers_belong_to_their_records() -> None:
    log = filled(25)
    assert log.last_sequence == 25
    for item in log.since(20):
        assert isinstance(item, Numbered)
        assert item.record.request_id == f"req-{item.sequence}"


@pytest.mark.parametrize(
    ("position", "seen"),
    [
        (25, []),
        (24, [25]),
        (15, [*range(16, 26)]),
        (14, [(15, 15), *range(16, 26)]),
        (0, [(1, 15), *range(16, 26)]),
    ],
)
def test_since_tells_what_is_gone(position: int, seen: list[int | tuple[int, int]]) -> None:
    assert shape(list(filled(25).since(position))) == seen


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 20), st.integers(0, 40))
def test_nothing_is_lost_silently_and_nothing_comes_twice(count: int, size: int, position: int) -> None:
    log = filled(count, size)
    told: list[int] = []
    for item in log.since(min(position, count)):
        told.extend(range(item.first, item.last + 1) if isinstance(item, Gap) else [item.sequence])
    assert told == list(range(min(position, count) + 1, count + 1))


async def take(follower: RequestFollower, count: int) -> list[Numbered | Gap]:
    return [await asyncio.wait_for(anext(follower), 1) for _ in range(count)]


async def test_a_follower_gets_what_comes_and_is_forgotten_when_closed() -> None:
    log = filled(3)
    follower = log.follow()
    waiting = asyncio.create_task(take(follower, 2))
    await asyncio.sleep(0)
    log.append(request_record(4))
    log.append(request_record(5))
    assert shape(await waiting) == [4, 5]
    follower.close()
    log.append(request_record(6))
    assert not follower.wake.is_set()


async def test_a_slow_follower_hears_of_its_gap() -> None:
    log = RequestLog(10_000)
    follower = log.follow()
    for number in range(1, MAX_LAG + 11):
        log.append(request_record(number))
    first, second = await take(follower, 2)
    assert (first, shape([second])) == (Gap(1, 10), [11])


async def test_a_cancelled_wait_loses_nothing() -> None:
    log = filled(1)
    follower = log.follow()
    waiting = asyncio.create_task(anext(follower))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waiting.cancel()
    log.append(request_record(2))
    assert shape(await take(follower, 1)) == [2]


async def test_resume() -> None:
    assert shape(await take(filled(25).follow(after=23), 2)) == [24, 25]


@pytest.mark.parametrize(("count", "seen"), [(25, [(0, 15), *range(16, 26)]), (3, [(0, 0), 1, 2, 3]), (0, [(0, 0)])])
async def test_a_number_of_an_earlier_process_replays_everything_behind_a_gap(
    count: int, seen: list[int | tuple[int, int]]
) -> None:
    log = filled(count)
    follower = log.follow(after=10_000)
    assert shape(await take(follower, len(seen))) == seen
    log.append(request_record(count + 1))
    assert shape(await take(follower, 1)) == [count + 1]


def test_a_page_is_newest_first() -> None:
    log = filled(25)
    page = log.page(parse_filter([("limit", "3"), ("offset", "1")], log.max_entries))
    assert [record.request_id for record in page] == ["req-24", "req-23", "req-22"]
    assert parse_filter([], 10) == RequestFilter(limit=10)
