"""The value ledger: prices, lanes and their bound, durability, and what a request must be to count (section 31)."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.config.core.origins import OriginConfig
from sbproxy.errors.observe import ValueStoreUnusable
from sbproxy.observe.core.value import (
    MAX_LANES,
    MAX_MICROS,
    OTHER,
    PARTS,
    Lane,
    Price,
    PriceTable,
    ValueReport,
    ValueRow,
    compile_prices,
    lane_for,
    micros,
)
from sbproxy.observe.metrics import Metrics
from sbproxy.observe.request_log import RequestLog
from sbproxy.observe.sink import RequestObserver
from sbproxy.observe.value_ledger import ValueLedger
from sbproxy.observe.value_store import SqliteValueStore
from support.admin_world import MemoryLanes, request_record

MINI = Price(150_000, 600_000)
"""Fifteen cents and sixty cents for a million tokens."""


def origins(*providers: dict[str, Any], host: str = "localhost") -> dict[str, OriginConfig]:
    return {host: OriginConfig.model_validate({"action": {"type": "ai_proxy", "providers": list(providers)}})}


def reference(prompt: int, completion: int = 0) -> dict[str, Any]:
    return {
        "model": "gpt-4o-mini",
        "prompt_micros_per_mtok": prompt,
        "completion_micros_per_mtok": completion,
    }


def deployments(**prices: int | None) -> dict[str, DeploymentConfig]:
    return {
        name: DeploymentConfig.model_validate(
            {"model": "tiny"} if price is None else {"model": "tiny", "reference": reference(price)}
        )
        for name, price in prices.items()
    }


LOCAL = {"name": "local", "provider_type": "managed_model", "deployment": "chat", "models": ["qwen"]}
CLOUD = {"name": "openai", "api_key": "sk-x", "models": ["qwen", "gpt-4o-mini"], "priority": 1}


# --- decisions --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=30), st.integers(0, 10**8))
def test_a_lane_is_rounded_once_however_many_completions_it_adds_up(uses: list[tuple[int, int]], price: int) -> None:
    of = Price(price, price // 3)
    parts = sum(of.parts(*use) for use in uses)
    exact = Fraction(sum(into * of.prompt + out * of.completion for into, out in uses), 10**6)
    assert abs(micros(parts) - exact) <= Fraction(1, 2)


@pytest.mark.parametrize(
    ("parts", "shown"),
    [(0, 0), (499_999, 0), (500_000, 1), (1_499_999, 1), (PARTS * MAX_MICROS * 2, MAX_MICROS)],
)
def test_rounding(parts: int, shown: int) -> None:
    assert micros(parts) == shown


def test_the_price_of_the_document() -> None:
    assert micros(MINI.parts(1_000_000, 0)) == 150_000
    assert micros(MINI.parts(315, 82)) == 96  # 47.25 + 49.2


@given(st.lists(st.integers(0, 3000), max_size=4000))
def test_never_more_than_a_thousand_lanes_and_nothing_is_lost(asked: list[int]) -> None:
    lanes: dict[str, int] = {}
    for number in asked:
        name = lane_for(f"model-{number}", lanes)
        lanes[name] = lanes.get(name, 0) + 1
    assert len(lanes) <= MAX_LANES
    assert sum(lanes.values()) == len(asked)
    distinct = list(dict.fromkeys(f"model-{number}" for number in asked))
    assert set(lanes) - {OTHER} == set(distinct[: MAX_LANES - 1])
    assert (OTHER in lanes) == (len(distinct) > MAX_LANES - 1)


def test_the_lane_that_a_model_has_it_keeps() -> None:
    full = {f"model-{number}" for number in range(MAX_LANES - 1)}
    assert lane_for("model-0", full) == "model-0"
    assert lane_for("late", full) == OTHER
    assert lane_for("late", full | {OTHER}) == OTHER
    assert lane_for("model-5", full | {OTHER}) == "model-5"
    assert lane_for(OTHER, {"model-0"}) == OTHER


def test_one_price_for_both_lanes_of_a_model() -> None:
    table = compile_prices(origins(CLOUD | {"reference": reference(9)}, LOCAL), deployments(chat=7))
    assert table.find("localhost", "local", "qwen") == Price(7, 0)
    assert table.find("localhost", "openai", "qwen") == Price(7, 0)
    assert table.find("localhost", "openai", "gpt-4o-mini") == Price(9, 0)
    assert table.find("elsewhere", "openai", "qwen") is None


def test_a_model_without_a_reference_has_no_price_in_either_lane() -> None:
    table = compile_prices(origins(LOCAL, CLOUD), deployments(chat=None))
    assert table == PriceTable()


def test_the_price_of_the_cloud_stands_in_for_a_local_model_that_names_none() -> None:
    table = compile_prices(origins(LOCAL, CLOUD | {"reference": reference(9)}), deployments(chat=None))
    assert table.find("localhost", "local", "qwen") == Price(9, 0)


def test_the_first_of_several_references_counts() -> None:
    second = CLOUD | {"name": "second", "priority": 0, "reference": reference(5)}
    off = CLOUD | {"name": "off", "enabled": False, "priority": -1, "reference": reference(3)}
    table = compile_prices(origins(CLOUD | {"reference": reference(9)}, second, off), {})
    assert table.find("localhost", "openai", "qwen") == Price(5, 0)


def test_a_provider_of_any_name_prices_what_only_it_answers() -> None:
    anything = {"name": "openai", "api_key": "sk-x", "reference": reference(9), "model_map": {"fast": "gpt-4o-mini"}}
    table = compile_prices(origins(LOCAL, anything), deployments(chat=7))
    assert table.find("localhost", "openai", "whatever") == Price(9, 0)
    assert table.find("localhost", "openai", "fast") == Price(9, 0)
    assert table.find("localhost", "openai", "qwen") == Price(7, 0)


def test_a_deployment_without_models_is_asked_for_by_its_id() -> None:
    bare = {"name": "local", "provider_type": "managed_model", "deployment": "chat"}
    assert compile_prices(origins(bare), deployments(chat=7)).asked == {("localhost", "chat"): Price(7, 0)}


def test_totals_are_sums_of_the_rows_as_they_are_shown() -> None:
    report = ValueReport.of({"b": Lane(1, 400_000, 2, 600_000), "a": Lane(3, 400_000, 4, 600_000)})
    assert report.rows == (ValueRow("a", 3, 0, 4, 1), ValueRow("b", 1, 0, 2, 1))
    assert (report.total_saved_micros, report.total_cloud_spent_micros) == (0, 2)
    assert (report.total_local_completions, report.total_cloud_completions) == (4, 6)


# --- the ledger -------------------------------------------------------------------------------------------------------


def ledger(store: Any = None, price: Price = MINI) -> ValueLedger:
    made = ValueLedger(store or MemoryLanes())
    made.publish(PriceTable({("localhost", "qwen"): price}))
    return made


def rows(ledger: ValueLedger) -> dict[str, tuple[int, int, int, int]]:
    return {
        row.model: (row.local_completions, row.saved_micros, row.cloud_completions, row.cloud_spent_micros)
        for row in ledger.report().rows
    }


def test_both_lanes_of_an_asked_for_model_stand_in_one_row() -> None:
    counted = ledger()
    observer = RequestObserver(RequestLog(10), Metrics(), counted)
    observer.finished(request_record(tokens_in=1_000_000, tokens_out=0))
    observer.finished(request_record(tokens_in=0, tokens_out=1_000_000))
    spilled = {"provider": "openai", "deployment": None, "route_class": "external"}
    observer.finished(request_record(tokens_in=2_000_000, tokens_out=None, **spilled))
    assert rows(counted) == {"qwen": (2, 750_000, 1, 300_000)}


@pytest.mark.parametrize(
    "changes",
    [
        {"status": 500},
        {"status": 429},
        {"status": 499},
        {"error_class": "stream_broken", "streamed": True},
        {"tokens_in": None, "tokens_out": None},
        {"provider": None},
        {"model": None},
        {"model": "without-a-reference"},
        {"origin": "elsewhere"},
    ],
    ids=str,
)
def test_what_is_worth_nothing(changes: dict[str, Any]) -> None:
    counted = ledger()
    counted.finished(request_record(**changes))
    assert rows(counted) == {}


def test_new_prices_hold_from_the_next_completion_on() -> None:
    counted = ledger()
    counted.finished(request_record(tokens_in=1_000_000, tokens_out=0))
    counted.publish(PriceTable({("localhost", "qwen"): Price(1_000_000, 0)}))
    counted.finished(request_record(tokens_in=1_000_000, tokens_out=0))
    counted.publish(PriceTable())
    counted.finished(request_record(tokens_in=1_000_000, tokens_out=0))
    assert rows(counted) == {"qwen": (2, 1_150_000, 0, 0)}


def test_names_beyond_the_limit_share_a_lane_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    counted = ValueLedger(MemoryLanes())
    counted.publish(PriceTable(open={("localhost", "local"): MINI}))
    for number in range(MAX_LANES + 50):
        counted.finished(request_record(model=f"model-{number}", tokens_in=1_000_000, tokens_out=0))
    shown = rows(counted)
    assert len(shown) == MAX_LANES
    assert shown[OTHER] == (51, 51 * 150_000, 0, 0)
    assert sum("value_ledger_overflow" in line for line in caplog.messages) == 1


def test_a_name_from_the_wire_is_bounded_and_printable() -> None:
    counted = ValueLedger(MemoryLanes())
    counted.publish(PriceTable(open={("localhost", "local"): MINI}))
    counted.finished(request_record(model="\x1b[31mred" + "x" * 5000))
    [name] = rows(counted)
    assert len(name) == 256
    assert name.isprintable()


def test_counting_costs_under_a_microsecond() -> None:
    counted, record = ledger(), request_record()
    best = float("inf")
    for _ in range(5):
        started = time.process_time_ns()
        for _ in range(2000):
            counted.finished(record)
        best = min(best, (time.process_time_ns() - started) / 2000)
    assert best <= 1000, f"{best:.0f} ns a request"


# --- the store --------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "value-ledger.sqlite3"


async def test_totals_outlive_the_process(path: Path) -> None:
    for turn in (1, 2, 3):
        counted = ledger(SqliteValueStore(path))
        await counted.flush()
        counted.finished(request_record(tokens_in=3, tokens_out=1))  # 1.05 micros
        assert rows(counted)["qwen"][:2] == (turn, round(1.05 * turn))
        await counted.flush()
        assert rows(counted)["qwen"][:2] == (turn, round(1.05 * turn))
    assert stat.S_IMODE((await asyncio.to_thread(path.stat)).st_mode) == 0o600


def test_fractions_of_a_micro_are_stored_too(tmp_path: Path) -> None:
    store = SqliteValueStore(tmp_path / "v.sqlite3")
    for _ in range(10):
        store.merge({"a": Lane(1, 250_000, 1, 100_001)})
    assert store.merge({}) == {"a": Lane(10, 2_500_000, 10, 1_000_010)}


def test_amounts_beyond_every_bound_are_cut_and_not_refused(tmp_path: Path) -> None:
    store = SqliteValueStore(tmp_path / "v.sqlite3")
    store.merge({"a": Lane(1, 10**40, 10**40, 0)})
    [(saved, cloud)] = [(lane.saved, lane.cloud) for lane in store.merge({}).values()]
    assert (saved, cloud) == (MAX_MICROS * PARTS, MAX_MICROS)


def test_nothing_to_store_makes_no_file(path: Path) -> None:
    assert SqliteValueStore(path).merge({}) == {}
    assert not path.parent.exists()


def test_two_processes_count_in_one_file_within_one_limit(tmp_path: Path) -> None:
    one, two = SqliteValueStore(tmp_path / "v.sqlite3"), SqliteValueStore(tmp_path / "v.sqlite3")
    one.merge({f"a-{number}": Lane(1) for number in range(MAX_LANES - 1)})
    lanes = two.merge({f"b-{number}": Lane(1) for number in range(5)} | {"a-0": Lane(1)})
    assert len(lanes) == MAX_LANES
    assert (lanes[OTHER].local, lanes["a-0"].local) == (5, 2)


class Refusing:
    """A store that takes nothing for as long as a test wants."""

    def __init__(self, store: MemoryLanes) -> None:
        self.store = store
        self.refuses = True

    def merge(self, added: dict[str, Lane]) -> dict[str, Lane]:
        if self.refuses:
            raise ValueStoreUnusable("/somewhere", "no space left on device")
        return self.store.merge(added)


async def test_a_store_that_refuses_costs_nothing_but_durability(caplog: pytest.LogCaptureFixture) -> None:
    store = Refusing(MemoryLanes())
    counted = ledger(store)
    for turn in (1, 2):
        counted.finished(request_record(tokens_in=1_000_000, tokens_out=0))
        await counted.flush()
        assert rows(counted) == {"qwen": (turn, turn * 150_000, 0, 0)}
    store.store.lanes["qwen"] = Lane(5, 7 * PARTS)  # of an earlier process
    store.refuses = False
    await counted.flush()
    assert rows(counted) == {"qwen": (7, 300_007, 0, 0)}
    assert [line.partition(":")[0] for line in caplog.messages] == [
        "value_ledger_in_memory",
        "value_ledger_durable_again",
    ]


async def test_what_comes_while_a_store_is_slow_is_counted_and_shown() -> None:
    lanes, going = MemoryLanes(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow:
        def merge(self, added: dict[str, Lane]) -> dict[str, Lane]:
            asyncio.run_coroutine_threadsafe(going.wait(), loop).result(5)
            return lanes.merge(added)

    counted = ledger(Slow())
    counted.finished(request_record(tokens_in=1_000_000, tokens_out=0))
    flushing = asyncio.create_task(counted.flush())
    await asyncio.sleep(0.01)
    counted.finished(request_record(tokens_in=1_000_000, tokens_out=0))
    assert rows(counted) == {"qwen": (2, 300_000, 0, 0)}
    flushing.cancel()
    await asyncio.sleep(0.01)
    assert rows(counted) == {"qwen": (2, 300_000, 0, 0)}
    going.set()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    await counted.flush()
    assert rows(counted) == {"qwen": (2, 300_000, 0, 0)}
    assert lanes.lanes == {"qwen": Lane(2, 300_000 * PARTS)}


@pytest.fixture
async def locked(path: Path) -> AsyncIterator[Path]:
    def lock() -> sqlite3.Connection:
        SqliteValueStore(path).merge({"qwen": Lane(1)})
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        db.execute("BEGIN IMMEDIATE")
        return db

    db = await asyncio.to_thread(lock)
    yield path
    db.close()


async def test_a_file_that_another_process_holds(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbproxy.observe.value_store.BUSY_S", 0.05)
    counted = ledger(SqliteValueStore(locked))
    counted.finished(request_record(tokens_in=1_000_000, tokens_out=0))
    await counted.flush()
    assert rows(counted) == {"qwen": (1, 150_000, 0, 0)}


@pytest.mark.parametrize("spoilt", ["text", "newer", "folder"])
def test_files_that_are_no_ledger(tmp_path: Path, spoilt: str) -> None:
    path = tmp_path / "v.sqlite3"
    if spoilt == "text":
        path.write_text("somebody wrote a letter here " * 100)
    elif spoilt == "folder":
        path = tmp_path / "v.sqlite3" / "below"
        (tmp_path / "v.sqlite3").write_text("")
    else:
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
    with pytest.raises(ValueStoreUnusable, match="counted in memory"):
        SqliteValueStore(path).merge({"a": Lane(1)})


FULL = """
import resource, sys
from pathlib import Path
from sbproxy.errors.observe import ValueStoreUnusable
from sbproxy.observe.core.value import Lane
from sbproxy.observe.value_store import SqliteValueStore
store = SqliteValueStore(Path(sys.argv[1]))
store.merge({"a": Lane(1)})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    store.merge({f"model-{n}" * 20: Lane(1) for n in range(500)})
except ValueStoreUnusable as error:
    print("refused", error.reason)
"""


@pytest.mark.e2e
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    path = tmp_path / "v.sqlite3"
    run = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=30)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("refused ")
    assert SqliteValueStore(path).merge({}) == {"a": Lane(1)}


def test_a_store_is_what_the_ledger_asks_for(path: Path) -> None:
    stored: Mapping[str, Lane] = SqliteValueStore(path).merge({"a": Lane(1, 2, 3, 4)})
    assert stored == {"a": Lane(1, 2, 3, 4)}
