"""The local tier's durability: clean stops, kills, disks that fail, and one owner of the file."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from sbproxy.errors.governance import BudgetExhausted, GovernanceStoreUnusable, RateExceeded
from sbproxy.keys.core.budget_period import DAILY
from sbproxy.keys.core.governance import Ask, Limits, Reservation, UsageSnapshot
from sbproxy.keys.governance_local import COMMIT_S, LocalGovernor

KEY = "00000000000000aa"
NOON = 1_800_000_000 // 86400 * 86400 + 43200.0


def opened(path: Path) -> LocalGovernor:
    return LocalGovernor(path, clock=lambda: NOON)


def held(governor: LocalGovernor, tokens: int, micro_usd: int = 0, limits: Limits | None = None) -> Reservation:
    answer = governor.try_reserve(KEY, limits or Limits(), Ask(tokens, micro_usd), NOON)
    assert isinstance(answer, Reservation)
    return answer


def usage(governor: LocalGovernor, limits: Limits | None = None) -> UsageSnapshot:
    return asyncio.run(governor.usage(KEY, limits or Limits()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "governance.sqlite3"


def test_a_clean_stop_forgets_nothing(path: Path) -> None:
    limits = Limits(requests_per_minute=2, max_tokens=100, max_micro_usd=100, period=DAILY)
    governor = opened(path)
    governor.settle(held(governor, 50, 5, limits), 30, 3, estimated=True)
    governor.settle(held(governor, 50, 5, limits), 20, 2, estimated=False)
    before = usage(governor, limits)
    governor.stop()
    governor = opened(path)
    assert usage(governor, limits) == before
    assert governor.recovered == 0
    assert isinstance(governor.try_reserve(KEY, limits, Ask(1, 1), NOON), RateExceeded)
    governor.stop()


def test_what_was_open_at_the_stop_is_booked_at_its_ceiling(path: Path) -> None:
    governor = opened(path)
    held(governor, 70, 7)
    governor.release(held(governor, 500))
    governor.stop()
    for recovered in (1, 0):
        governor = opened(path)
        now = usage(governor, Limits(max_tokens=100))
        assert governor.recovered == recovered
        assert (now.budget_tokens.used, now.budget_tokens.reserved, now.budget_tokens.remaining) == (70, 0, 30)
        assert (now.lifetime.estimated_tokens, now.lifetime.estimated_micro_usd) == (70, 7)
        governor.stop()


VICTIM = """
import sys, time
from pathlib import Path
from sbproxy.keys.core.governance import Ask, Limits
from sbproxy.keys.governance_local import LocalGovernor
governor = LocalGovernor(Path(sys.argv[1]))
for number in range(1000):
    one = governor.try_reserve(sys.argv[2], Limits(), Ask(10, 1), time.time())
    governor.settle(one, 7, 1, estimated=False)
for number in range(3):
    governor.try_reserve(sys.argv[2], Limits(), Ask(100, 20), time.time())
time.sleep(float(sys.argv[3]))
print("done", flush=True)
time.sleep(60)
"""


@pytest.mark.e2e
def test_a_kill_forgets_a_tenth_of_a_second_at_most(path: Path) -> None:
    command = [sys.executable, "-c", VICTIM, str(path), KEY, str(COMMIT_S * 4)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"done\n"
        with pytest.raises(GovernanceStoreUnusable, match="another process holds it"):
            LocalGovernor(path)
        os.kill(victim.pid, signal.SIGKILL)
    governor = opened(path)
    assert governor.recovered == 3
    now = usage(governor)
    assert (now.lifetime.requests, now.lifetime.tokens, now.lifetime.micro_usd) == (1003, 7300, 1060)
    assert now.lifetime.estimated_tokens == 300
    assert now.budget_tokens.reserved == 0
    governor.stop()


def test_a_budget_survives_the_restart_as_it_was_enforced(path: Path) -> None:
    limits = Limits(max_tokens=100)
    for _ in range(10):
        governor = opened(path)
        if isinstance(answer := governor.try_reserve(KEY, limits, Ask(30, 0), NOON), Reservation):
            governor.settle(answer, 30, 0, estimated=False)
        governor.stop()
    governor = opened(path)
    assert usage(governor, limits).budget_tokens.used == 90
    assert isinstance(governor.try_reserve(KEY, limits, Ask(30, 0), NOON), BudgetExhausted)
    governor.stop()


def test_a_forgotten_key_is_gone_from_the_file(path: Path) -> None:
    governor = opened(path)
    governor.settle(held(governor, 9), 9, 0, estimated=False)
    held(governor, 9)
    time.sleep(COMMIT_S * 3)
    asyncio.run(governor.forget(KEY))
    governor.stop()
    governor = opened(path)
    assert governor.recovered == 0
    assert usage(governor).lifetime.tokens == 0
    governor.stop()


def test_the_file_is_private_and_has_one_owner(path: Path) -> None:
    governor = opened(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(GovernanceStoreUnusable, match="another process holds it"):
        opened(path)
    governor.stop()
    governor.stop()
    opened(path).stop()


def test_a_file_that_is_no_ledger_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(GovernanceStoreUnusable, match="not a database"):
        opened(path)


def test_a_ledger_of_a_newer_version_is_refused(path: Path) -> None:
    opened(path).stop()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(GovernanceStoreUnusable, match="newer version"):
        opened(path)


def test_a_disk_that_fails_stops_no_request_and_loses_nothing_once_it_works(path: Path) -> None:
    governor, limits = opened(path), Limits(max_tokens=100)
    database = governor._store._db
    database.execute("PRAGMA query_only = 1")
    governor.settle(held(governor, 40, limits=limits), 40, 0, estimated=False)
    governor.release(held(governor, 60, limits=limits))
    held(governor, 50, limits=limits)
    time.sleep(COMMIT_S * 3)
    broken = usage(governor, limits)
    assert broken.backend.status == "degraded"
    assert broken.backend.detail
    assert isinstance(governor.try_reserve(KEY, limits, Ask(11, 0), NOON), BudgetExhausted)
    database.execute("PRAGMA query_only = 0")
    end = time.monotonic() + 5
    while usage(governor, limits).backend.status != "healthy":
        assert time.monotonic() < end
        time.sleep(0.02)
    governor.stop()
    governor = opened(path)
    assert governor.recovered == 1
    assert usage(governor, limits).budget_tokens.used == 90
    governor.stop()
