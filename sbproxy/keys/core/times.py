"""RFC 3339 on the outside, Unix seconds on the inside."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload

LATEST = 253_402_300_799.0
"""The last second that four digits of a year can say."""


@overload
def rfc3339(seconds: float) -> str: ...
@overload
def rfc3339(seconds: float | None) -> str | None: ...
def rfc3339(seconds: float | None) -> str | None:
    """``2026-07-01T00:00:00Z``, with milliseconds only where there are some."""
    if seconds is None:
        return None
    milliseconds = round(seconds * 1000)
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    fraction = f".{milliseconds % 1000:03d}" if milliseconds % 1000 else ""
    return f"{at:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def parse_rfc3339(text: str) -> float:
    """Raises ValueError for anything but a date and time with an offset, and for what no file of ours could say."""
    if len(text) > 40 or "T" not in text.upper():
        raise ValueError("expected a time such as 2026-07-01T00:00:00Z")
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expected a time such as 2026-07-01T00:00:00Z") from None
    if at.tzinfo is None:
        raise ValueError("the time needs an offset, such as the Z of 2026-07-01T00:00:00Z")
    try:
        seconds = at.timestamp()
    except OverflowError:
        raise ValueError("the time is out of range") from None
    if not 0 <= seconds <= LATEST:
        raise ValueError("the time is out of range")
    return seconds
