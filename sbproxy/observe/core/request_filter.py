"""Decides which rows ``GET /api/requests`` shows (document 2, "GET /api/requests").

The ring lives in ``sbproxy.observe.request_log``; the wire shape in the admin API.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from sbproxy.errors.observe import InvalidParameter, UnknownParameter, UnsupportedParameter
from sbproxy.observe.core.record import RequestRecord

SUPPORTED = ("status", "method", "path", "cache_status", "retried", "key_mode", "api_key_id", "offset", "limit")
# In the document, but no record carries their data yet: an empty list would look like an answer.
UNSUPPORTED = (
    "guardrail_action",
    "guardrail_category",
    "property_key",
    "property_value",
    "session_id",
)
CACHE_STATUSES = ("disabled", "miss", "hit", "semantic_hit")
KEY_MODES = ("none", "minted", "native")
_MAX_TEXT = 2048
_MAX_NUMBER = 9_007_199_254_740_991


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """What a caller asked for; None filters nothing. ``limit`` is at most the ring's size."""

    limit: int
    offset: int = 0
    status: int | None = None
    method: str | None = None
    path: str | None = None
    cache_status: str | None = None
    key_mode: str | None = None
    api_key_id: str | None = None
    retried: bool | None = None

    def matches(self, record: RequestRecord) -> bool:
        return (
            (self.status is None or record.status == self.status)
            and (self.method is None or record.method.upper() == self.method)
            and (self.path is None or self.path in record.path)
            and (self.retried is None or (record.retry_count > 0) == self.retried)
            # Without a cache in this version every row is "disabled".
            and self.cache_status in (None, "disabled")
            and self.key_mode in (None, record.key_mode or "none")
            and self.api_key_id in (None, record.api_key_id)
        )

    def select(self, newest_first: Iterable[RequestRecord]) -> list[RequestRecord]:
        """The page: matching records, ``offset`` skipped, at most ``limit``."""
        matching = (record for record in newest_first if self.matches(record))
        return list(islice(matching, self.offset, self.offset + self.limit))


def parse_filter(parameters: Iterable[tuple[str, str]], max_entries: int) -> RequestFilter:
    """Read decoded query parameters; ``limit`` defaults to and is clamped at ``max_entries``.

    Raises UnknownParameter, UnsupportedParameter or InvalidParameter.
    """
    given: dict[str, str] = {}
    for name, value in parameters:
        if name in UNSUPPORTED:
            raise UnsupportedParameter(name)
        if name not in SUPPORTED:
            raise UnknownParameter(name[:64], SUPPORTED)
        if name in given:
            raise InvalidParameter(name, "given once")
        given[name] = value
    limit = _number(given, "limit")
    return RequestFilter(
        limit=max_entries if limit is None else min(limit, max_entries),
        offset=_number(given, "offset") or 0,
        status=_number(given, "status"),
        method=method.upper() if (method := _text(given, "method")) else None,
        path=_text(given, "path"),
        cache_status=_choice(given, "cache_status", CACHE_STATUSES),
        key_mode=_choice(given, "key_mode", KEY_MODES),
        api_key_id=_text(given, "api_key_id"),
        retried=None if (retried := _choice(given, "retried", ("true", "false"))) is None else retried == "true",
    )


def _number(given: dict[str, str], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()) or len(value) > 16 or int(value) > _MAX_NUMBER:
        raise InvalidParameter(name, "a whole number, zero or more")
    return int(value)


def _text(given: dict[str, str], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not 1 <= len(value) <= _MAX_TEXT:
        raise InvalidParameter(name, f"1 to {_MAX_TEXT} characters")
    return value


def _choice(given: dict[str, str], name: str, allowed: tuple[str, ...]) -> str | None:
    value = given.get(name)
    if value is not None and value not in allowed:
        raise InvalidParameter(name, f"one of {', '.join(allowed)}")
    return value
