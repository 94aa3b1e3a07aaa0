"""Decides which span of time a budget is counted over. Pure; all spans are in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

HOUR_S = 3600
DAY_S = 24 * HOUR_S
_FIRST_MONDAY_S = 4 * DAY_S
_LENGTH = re.compile(r"([1-9][0-9]{0,4})(h|d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Period:
    """``seconds`` None: nothing is reset (``lifetime``) or, for ``monthly``, the calendar says when.

    ``name`` tells periods apart in stores: a key whose period changes begins a fresh span.
    """

    name: str
    seconds: int | None = None
    offset_s: int = 0

    @property
    def resets(self) -> bool:
        return self.seconds is not None or self is MONTHLY or self.name == MONTHLY.name

    def span(self, at: float) -> tuple[int, int]:
        """Start and end, in Unix seconds, of the span that ``at`` lies in. Only for a period that resets."""
        if self.seconds is not None:
            start = int((at - self.offset_s) // self.seconds) * self.seconds + self.offset_s
            return start, start + self.seconds
        if not self.resets:
            raise ValueError(f"{self.name} has no spans")
        first = datetime.fromtimestamp(at, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        return int(first.timestamp()), int(following.timestamp())


LIFETIME = Period("lifetime")
MONTHLY = Period("monthly")
DAILY = Period("daily", DAY_S)
WEEKLY = Period("weekly", 7 * DAY_S, _FIRST_MONDAY_S)
"""From Monday to Monday; the Unix epoch was a Thursday."""

_NAMED = {"lifetime": LIFETIME, "total": LIFETIME, "daily": DAILY, "weekly": WEEKLY, "monthly": MONTHLY}


def parse_period(text: str) -> Period | None:
    """``daily weekly monthly total lifetime``, or a length such as ``30d`` or ``1h``, counted from the Unix epoch.

    None for anything else, so that the configuration can refuse it: read as ``total``, a misspelt ``dayly`` would
    never reset (contracts section 5).
    """
    if text in _NAMED:
        return _NAMED[text]
    found = _LENGTH.fullmatch(text)
    if found is None:
        return None
    return Period(text, int(found[1]) * (HOUR_S if found[2] == "h" else DAY_S))
