"""Spans of budget periods: aligned in UTC, without gaps, and no bad name taken for a total."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.keys.core.budget_period import DAILY, LIFETIME, MONTHLY, WEEKLY, Period, parse_period


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("name", "now", "start", "end"),
    [
        ("daily", "2026-03-09T23:59:59", "2026-03-09", "2026-03-10"),
        ("weekly", "2026-03-08T23:59:59", "2026-03-02", "2026-03-09"),
        ("weekly", "2026-03-09T00:00:00", "2026-03-09", "2026-03-16"),
        ("monthly", "2026-12-31T12:00:00", "2026-12-01", "2027-01-01"),
        ("monthly", "2028-02-29T00:00:00", "2028-02-01", "2028-03-01"),
        ("1h", "2026-03-09T10:59:59", "2026-03-09T10:00:00", "2026-03-09T11:00:00"),
        ("30d", "1970-01-31T00:00:00", "1970-01-31", "1970-03-02"),
    ],
)
def test_spans(name: str, now: str, start: str, end: str) -> None:
    period = parse_period(name)
    assert period is not None
    assert period.resets
    assert period.span(at(now)) == (at(start), at(end))


@pytest.mark.parametrize("name", ["total", "lifetime"])
def test_totals_are_never_reset(name: str) -> None:
    period = parse_period(name)
    assert period == LIFETIME
    assert not LIFETIME.resets
    with pytest.raises(ValueError, match="no spans"):
        LIFETIME.span(0)


@pytest.mark.parametrize(
    "name", ["", "dayly", "Daily", "0d", "30", "d", "1m", "-1h", "1.5h", "1h ", "\u0661d", "999999d"]
)
def test_anything_else_is_no_period(name: str) -> None:
    assert parse_period(name) is None


@given(st.sampled_from([DAILY, WEEKLY, MONTHLY, Period("7h", 7 * 3600)]), st.floats(0, 4e9))
def test_a_span_holds_its_moment_and_the_next_begins_where_it_ends(period: Period, moment: float) -> None:
    start, end = period.span(moment)
    assert start <= moment < end
    assert period.span(end)[0] == end
    assert period.span(start) == (start, end)
