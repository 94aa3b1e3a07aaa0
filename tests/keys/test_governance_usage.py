"""Governance as the admin API reads it: every counter of the record, in values that JSON has."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

from sbproxy.keys.core.governance import Ask, Limits, Reservation
from sbproxy.keys.core.record import KeyBudget, KeyRecord
from sbproxy.keys.governance_local import LocalGovernor
from sbproxy.keys.governance_usage import GovernedUsage, limits_of

KEY = "00000000000000aa"


def record() -> KeyRecord:
    plain = KeyRecord(key_id=KEY, secret_hash="0" * 64)
    return replace(
        plain,
        max_requests_per_minute=10,
        max_tokens_per_minute=500,
        budget=KeyBudget(max_tokens=1000, max_cost_usd=0.25),
    )


def test_every_limit_of_a_record_is_enforced() -> None:
    assert limits_of(record()) == Limits(10, 500, 1000, 250_000)
    assert limits_of(KeyRecord(key_id=KEY, secret_hash="0" * 64)) == Limits()


async def test_the_body_shows_the_counters_that_enforce(tmp_path: Path) -> None:
    governor = await asyncio.to_thread(LocalGovernor, tmp_path / "governance.sqlite3")
    limits = limits_of(record())
    for estimated in (True, False):
        held = governor.try_reserve(KEY, limits, Ask(100, 1000), time.time())
        assert isinstance(held, Reservation)
        governor.settle(held, 40, 700, estimated=estimated)
    governor.try_reserve(KEY, limits, Ask(100, 1000), time.time())
    body = json.loads(json.dumps(await GovernedUsage(governor).snapshot(record())))
    await governor.close()
    assert body["budget_tokens"] == {"limit": 1000, "used": 80, "reserved": 100, "remaining": 820, "resets_at": None}
    assert body["budget_micro_usd"]["remaining"] == 250_000 - 1400 - 1000
    assert body["requests_per_minute"]["limit"] == 10
    assert body["tokens_per_minute"]["resets_at"] % 60 == 0
    assert body["lifetime"] == {
        "requests": 2,
        "tokens": 80,
        "micro_usd": 1400,
        "estimated_tokens": 40,
        "estimated_micro_usd": 700,
    }
    assert body["backend"] == {"type": "local", "status": "healthy", "detail": None}
    assert (body["key_id"], body["consistency"]) == (KEY, "approximate")
