"""Reads what the scripts of the Redis tier answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sbproxy.errors.governance import BudgetExhausted, RateExceeded
from sbproxy.keys.core.governance import (
    WINDOW_S,
    BackendHealth,
    CounterUsage,
    Limits,
    Totals,
    UsageSnapshot,
)

SpanNow = tuple[str, int, int]
"""Name of the period, start and end of its span of now in Unix seconds."""


def refusal(reply: Sequence[Any], limits: Limits, tokens: int, micro_usd: int) -> RateExceeded | BudgetExhausted:
    counter, used, reserved, retry_s = str(reply[1]), int(reply[2]), int(reply[3]), int(reply[4])
    asked = {"requests_per_minute": 1, "max_micro_usd": micro_usd}.get(counter, tokens)
    limit = getattr(limits, counter)
    if retry_s < 0:
        return BudgetExhausted(counter, limit, used, reserved, asked)
    return RateExceeded(counter, limit, used, reserved, asked, retry_s)


def snapshot(
    key_id: str,
    limits: Limits,
    books: Mapping[str, str],
    at: int,
    span: SpanNow | None,
    health: BackendHealth,
) -> UsageSnapshot:
    window = max(at // WINDOW_S * WINDOW_S, int(books.get("window_start", 0)))
    current = {"life": True, "window": books.get("window_start") == str(window), "span": False}
    bucket, resets_at = "life", None
    if span is not None:
        name, start, resets_at = span
        bucket = "span"
        current["span"] = books.get("span_name") == name and int(books.get("span_start", 0)) >= start

    def counter(limit: int | None, bucket: str, what: str, until: int | None) -> CounterUsage:
        used, held = (int(books.get(f"{bucket}_{kind}_{what}", 0)) * current[bucket] for kind in ("used", "held"))
        return CounterUsage(limit, used, held, until)

    def total(name: str) -> int:
        return int(books.get(name, 0))

    return UsageSnapshot(
        key_id=key_id,
        consistency="strict",
        requests_per_minute=counter(limits.requests_per_minute, "window", "requests", window + WINDOW_S),
        tokens_per_minute=counter(limits.tokens_per_minute, "window", "tokens", window + WINDOW_S),
        budget_tokens=counter(limits.max_tokens, bucket, "tokens", resets_at),
        budget_micro_usd=counter(limits.max_micro_usd, bucket, "micro_usd", resets_at),
        lifetime=Totals(
            total("life_used_requests"),
            total("life_used_tokens"),
            total("life_used_micro_usd"),
            total("estimated_tokens"),
            total("estimated_micro_usd"),
        ),
        backend=health,
    )
