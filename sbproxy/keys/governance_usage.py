"""Governance as the admin API reads it: a key's record in, its counters out as JSON values (document 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sbproxy.keys.core.governance import CounterUsage, Governor, Limits, UsageSnapshot
from sbproxy.keys.core.record import KeyRecord


def limits_of(record: KeyRecord) -> Limits:
    """What a key's record limits. Its budgets are totals over its life: a record names no period."""
    return Limits(
        requests_per_minute=record.max_requests_per_minute,
        tokens_per_minute=record.max_tokens_per_minute,
        max_tokens=record.budget.max_tokens,
        max_micro_usd=record.budget.max_cost_micros,
    )


class GovernedUsage:
    """Implements ``UsageReader``."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor

    async def snapshot(self, record: KeyRecord) -> Mapping[str, Any]:
        """``GET /admin/keys/{id}/usage``. Raises GovernanceUnavailable."""
        return usage_body(await self._governor.usage(record.key_id, limits_of(record)))


def usage_body(usage: UsageSnapshot) -> dict[str, Any]:
    """Per counter ``limit``, ``used``, ``reserved``, ``remaining`` and ``resets_at`` (Unix seconds).

    ``limit`` and ``remaining`` are null when unlimited, ``resets_at`` when nothing ever resets the counter.
    """
    return {
        "key_id": usage.key_id,
        "consistency": usage.consistency,
        "requests_per_minute": _counter(usage.requests_per_minute),
        "tokens_per_minute": _counter(usage.tokens_per_minute),
        "budget_tokens": _counter(usage.budget_tokens),
        "budget_micro_usd": _counter(usage.budget_micro_usd),
        "lifetime": asdict(usage.lifetime),
        "backend": asdict(usage.backend),
    }


def _counter(counter: CounterUsage) -> dict[str, int | None]:
    return {
        "limit": counter.limit,
        "used": counter.used,
        "reserved": counter.reserved,
        "remaining": counter.remaining,
        "resets_at": counter.resets_at,
    }
