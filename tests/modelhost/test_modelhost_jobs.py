"""Jobs: legal moves, ULIDs, the SQLite store across processes, and the event feed with replay and gaps."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import pytest
from blockbuster import BlockBuster
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.errors.modelhost import JobStoreUnusable
from sbproxy.modelhost.core import jobs as core
from sbproxy.modelhost.core.jobs import LEGAL_MOVES, TERMINAL, IllegalMove, JobId, JobKind, JobProgress, JobRecord
from sbproxy.modelhost.core.ulid import MonotonicUlids, encode, is_ulid
from sbproxy.modelhost.job_desk import JobDesk
from sbproxy.modelhost.job_feed import EVENTS_PER_JOB, FOLLOWER_BACKLOG, JOBS_REPLAYED, Gap, JobEvent, JobFeed
from sbproxy.modelhost.job_store import KEEP_FINISHED, KEEP_FINISHED_MS, MIGRATIONS, SqliteJobStore, process_start

ULIDS = MonotonicUlids()


def record(kind: JobKind = "load", at_ms: int = 1000) -> JobRecord:
    return core.new_job(JobId(ULIDS.next(at_ms, 5)), kind, "chat", at_ms)


@pytest.fixture
def store_path(tmp_path: Path, blockbuster: BlockBuster) -> Path:
    blockbuster.deactivate()  # the store is blocking by contract; the desk's own tests turn it on again
    return tmp_path / "state" / "jobs.db"


# --- decisions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", get_args(JobKind))
def test_walk_of_the_legal_moves(kind: JobKind) -> None:
    states = get_args(core.JobState)
    for before in states:
        job = core.replace(record(kind), state=before)
        for after in states:
            if after in LEGAL_MOVES[kind].get(before, frozenset()):
                moved = core.move(job, after, 2000)
                assert (moved.terminal_at_ms is not None) == (after in TERMINAL)
            else:
                with pytest.raises(IllegalMove):
                    core.move(job, after, 2000)
    assert not TERMINAL & LEGAL_MOVES[kind].keys()


@given(st.lists(st.tuples(st.integers(0, 100), st.none() | st.integers(1, 100)), max_size=20))
def test_progress_never_goes_back_and_a_known_total_stays(steps: list[tuple[int, int | None]]) -> None:
    job = core.move(record("pull"), "downloading", 1000)
    for completed, total in steps:
        before = job.progress
        job = core.move(job, "downloading", 1000, progress=JobProgress(completed, total, "f"))
        assert job.progress.total_bytes == (total if before.total_bytes is None else before.total_bytes)
        limit = job.progress.total_bytes
        assert job.progress.completed_bytes >= (
            before.completed_bytes if limit is None else min(before.completed_bytes, limit)
        )


def test_errors_are_bounded_and_lose_their_tokens() -> None:
    failed = core.move(record(), "failed", 1, error="GET x: Bearer hf_secret, again bearer abc \x1b[31m" + "y" * 5000)
    assert failed.error is not None
    assert "hf_secret" not in failed.error
    assert "abc" not in failed.error
    assert failed.error.count("Bearer [REDACTED]") == 2
    assert "\x1b" not in failed.error
    assert len(failed.error) == core.MAX_ERROR
    assert failed.updated_at_ms == 1000


def test_a_subject_is_cut_and_printable() -> None:
    assert core.new_job(JobId("x"), "pull", "a\nb" + "c" * 600, 1).subject == ("a?b" + "c" * 600)[:512]


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, (1 << 80) - 1)), min_size=1, max_size=50))
def test_ulids_grow_whatever_the_clock_does(moments: list[tuple[int, int]]) -> None:
    ulids = MonotonicUlids()
    made = [ulids.next(ms, randomness) for ms, randomness in moments]
    assert made == sorted(set(made))
    assert all(is_ulid(each) for each in made)


def test_ulid_text() -> None:
    assert encode(0, 0) == "0" * 26
    assert encode((1 << 48) - 1, (1 << 80) - 1) == "7" + "Z" * 25
    assert encode(1469918176385, 0)[:10] == "01ARYZ6S41"
    for text in (
        "",
        "01ARZ3NDEKTSV4RRFFQ69G5FA",
        "01arz3ndektsv4rrffq69g5fav",
        "81ARZ3NDEKTSV4RRFFQ69G5FAV",
        "0" * 25 + "U",
    ):
        assert not is_ulid(text)


# --- the store --------------------------------------------------------------------------------------------------------


def test_records_survive_and_the_file_is_private(store_path: Path) -> None:
    store = SqliteJobStore(store_path)
    job = record("pull", at_ms=int(time.time() * 1000))
    store.save(job)
    job = core.move(job, "downloading", job.created_at_ms + 5, progress=JobProgress(5, 10, "m.gguf"))
    store.save(job)
    done = core.move(core.move(job, "verifying", job.updated_at_ms), "ready", job.updated_at_ms)
    store.save(done)
    store.close()
    assert store_path.stat().st_mode & 0o777 == 0o600
    assert store_path.parent.stat().st_mode & 0o777 == 0o700
    again = SqliteJobStore(store_path)
    assert again.get(done.id) == done
    assert again.jobs() == [done]
    assert again.get(JobId("0" * 26)) is None
    again.close()


CHILD = """
import sys, time
from pathlib import Path
from sbproxy.modelhost.core.jobs import new_job, move
from sbproxy.modelhost.job_store import SqliteJobStore
store = SqliteJobStore(Path(sys.argv[1]))
store.save(move(new_job("01ARZ3NDEKTSV4RRFFQ69G5FAV", "pull", "one:q4", int(time.time() * 1000)), "downloading", 0))
print("saved", flush=True)
sys.stdin.read()
"""


@pytest.mark.e2e
def test_only_jobs_of_dead_processes_are_interrupted(store_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(store_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "saved\n"
        store = SqliteJobStore(store_path)
        job_id = JobId("01ARZ3NDEKTSV4RRFFQ69G5FAV")
        job = store.get(job_id)
        assert job is not None
        assert job.state == "downloading"
        child.kill()
        child.wait()
    SqliteJobStore(store_path).close()
    job = store.get(job_id)
    assert job is not None
    assert (job.state, job.error_code) == ("failed", "interrupted")
    assert job.terminal_at_ms is not None
    store.close()


def test_a_pid_that_was_given_to_somebody_else_does_not_count(store_path: Path) -> None:
    store = SqliteJobStore(store_path)
    job = record("load")
    store.save(job)
    store._db.execute("UPDATE jobs SET owner_started = 'another boot:1'")
    store.close()
    again = SqliteJobStore(store_path)
    assert again.jobs()[0].error_code == "interrupted"
    again.close()


def test_process_start_of_nobody() -> None:
    assert process_start(2**22 + 1) is None


def test_history_is_pruned_by_age_and_number(store_path: Path) -> None:
    now = [10_000_000.0]
    store = SqliteJobStore(store_path, now=lambda: now[0])
    start = int(now[0] * 1000)
    jobs = [core.move(record("load", start + n), "ready", start + n) for n in range(KEEP_FINISHED + 20)]
    for job in jobs:
        store.save(job)
    running = record("load", start)
    store.save(running)
    kept = store.jobs()
    assert len(kept) == KEEP_FINISHED + 1
    assert jobs[-1] in kept
    assert jobs[0] not in kept
    now[0] += KEEP_FINISHED_MS / 1000 + 60
    store.save(core.move(record("load", start), "ready", int(now[0] * 1000)))
    assert [job.state for job in store.jobs()] == ["queued", "ready"]
    store.close()


def test_a_newer_version_of_the_file_is_numbered(store_path: Path) -> None:
    SqliteJobStore(store_path).close()
    with sqlite3.connect(store_path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),) == (3,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()


def test_a_file_of_the_first_version_keeps_its_jobs(store_path: Path) -> None:
    store_path.parent.mkdir(parents=True)
    with sqlite3.connect(store_path) as db:
        db.executescript(MIGRATIONS[0])
        db.execute("PRAGMA user_version = 1")
        db.execute(
            "INSERT INTO jobs VALUES ('01ARZ3NDEKTSV4RRFFQ69G5FAV', 'stop', 'chat', 'ready', 0, NULL, NULL,"
            " ?1, ?1, ?1, NULL, NULL, 1, 'x')",
            (int(time.time() * 1000),),
        )
    db.close()
    store = SqliteJobStore(store_path)
    [old] = store.jobs()
    assert (old.id, old.kind, old.state, old.note) == ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "stop", "ready", None)
    told = core.move(record("drain", old.created_at_ms), "ready", old.created_at_ms, note="Bearer s3cret was cut")
    store.save(told)
    assert store.get(told.id) == told
    assert told.note == "Bearer [REDACTED] was cut"
    store.close()


def test_statements_take_under_a_millisecond(store_path: Path) -> None:
    store = SqliteJobStore(store_path)
    times = []
    for _ in range(50):
        job = record("load", int(time.time() * 1000))
        started = time.perf_counter()
        store.save(job)
        store.save(core.move(job, "ready", job.created_at_ms))
        times.append((time.perf_counter() - started) / 2)
    assert sorted(times)[25] < 1e-3
    store.close()


# --- the feed ---------------------------------------------------------------------------------------------------------


async def take(stream: AsyncIterator[JobEvent | Gap], count: int) -> list[JobEvent | Gap]:
    async with asyncio.timeout(2):
        return [await anext(stream) for _ in range(count)]


def sequences(items: list[JobEvent | Gap]) -> list[int | tuple[int, int]]:
    return [(item.first, item.last) if isinstance(item, Gap) else item.sequence for item in items]


async def test_a_stream_replays_after_the_last_id_and_ends_at_the_terminal_event() -> None:
    feed = JobFeed()
    job, other = record(), record()
    for each in (job, other, core.move(job, "running", 1)):
        feed.publish(each)
    stream = feed.subscribe(job.id, 0)
    assert sequences(await take(stream, 1)) == [2]
    assert feed.publish(core.move(other, "running", 1)) == 3
    feed.publish(core.move(job, "ready", 1))
    assert sequences([item async for item in stream]) == [4]
    assert feed.followers == 0
    assert sequences([item async for item in feed.subscribe(job.id, None)]) == [0, 2, 4]
    assert [item async for item in feed.subscribe(job.id, 4)] == []


async def test_all_jobs_in_one_stream() -> None:
    feed = JobFeed()
    for _ in range(3):
        feed.publish(record())
    stream = feed.subscribe(None, 0)
    assert sequences(await take(stream, 2)) == [1, 2]
    waiting = asyncio.ensure_future(take(stream, 1))
    await asyncio.sleep(0)
    feed.publish(record())
    assert sequences(await waiting) == [3]
    await stream.aclose()  # type: ignore[attr-defined]
    assert feed.followers == 0


async def test_what_fell_out_of_the_replay_is_a_gap() -> None:
    feed = JobFeed()
    job = core.move(record("pull"), "downloading", 1)
    for _ in range(EVENTS_PER_JOB + 10):
        feed.publish(job)
    items = await take(feed.subscribe(job.id, 3), 3)
    assert sequences(items) == [(4, 9), 10, 11]
    assert sequences(await take(feed.subscribe(job.id, 9), 1)) == [10]
    assert sequences(await take(feed.subscribe(None, None), 1)) == [10]


async def test_only_so_many_jobs_replay() -> None:
    feed = JobFeed()
    first = record()
    feed.publish(first)
    for _ in range(JOBS_REPLAYED):
        feed.publish(record())
    assert not feed.knows(first.id)
    feed.publish(record())
    assert sequences(await take(feed.subscribe(None, 0), 2)) == [(1, 1), 2]


async def test_an_id_of_an_earlier_process_is_a_gap_over_everything() -> None:
    feed = JobFeed()
    feed.publish(record())
    feed.publish(record())
    assert sequences(await take(feed.subscribe(None, 900), 3)) == [(0, 1), 0, 1]


async def test_a_slow_follower_gets_one_gap_and_then_goes_on() -> None:
    feed = JobFeed()
    stream = feed.subscribe(None, None)
    waiting = asyncio.ensure_future(take(stream, 1))
    await asyncio.sleep(0)
    for _ in range(FOLLOWER_BACKLOG + 5):
        feed.publish(record())
    items = await waiting + await take(stream, FOLLOWER_BACKLOG)
    assert sequences(items) == [*range(FOLLOWER_BACKLOG), (FOLLOWER_BACKLOG, FOLLOWER_BACKLOG + 4)]
    feed.publish(record())
    assert sequences(await take(stream, 1)) == [FOLLOWER_BACKLOG + 5]


async def test_the_desk_never_blocks_the_loop_and_keeps_order(tmp_path: Path) -> None:
    store = await asyncio.to_thread(SqliteJobStore, tmp_path / "jobs.db")
    desk = JobDesk(store, time.time)
    job = await desk.open("pull", "one:q4")
    assert is_ulid(job.id)
    for done in range(100):
        job.progress("downloading", JobProgress(done, 100, "f"))
    events = len(await take(desk.feed.subscribe(job.id, None), 2))
    job.progress("verifying", JobProgress(100, 100))
    job.finish()
    assert events == 2
    assert (await desk.get(job.id)).state == "ready"
    assert [record.state for record in await desk.list()] == ["ready"]
    left = await desk.open("load", "chat")
    await desk.close()
    stored = await asyncio.to_thread(store.get, left.id)
    assert stored is not None
    assert stored.error_code == "interrupted"
    await asyncio.to_thread(store.close)


async def test_a_job_older_than_the_feed_streams_its_end_and_closes(tmp_path: Path) -> None:
    store = await asyncio.to_thread(SqliteJobStore, tmp_path / "jobs.db")
    old = core.move(record("load", int(time.time() * 1000)), "ready", 0)
    await asyncio.to_thread(store.save, old)
    desk = JobDesk(store, time.time)
    [event] = [event async for event in desk.follow(old.id, 77)]
    assert isinstance(event, JobEvent)
    assert event.job == old
    await desk.close()
    await asyncio.to_thread(store.close)


def test_a_database_that_cannot_be_opened_is_named(store_path: Path) -> None:
    store_path.parent.mkdir(parents=True)
    store_path.write_bytes(b"this is no database at all, but a text that somebody put here" * 50)
    with pytest.raises(JobStoreUnusable, match="not a database"):
        SqliteJobStore(store_path)
    with pytest.raises(JobStoreUnusable, match="Not a directory"):
        SqliteJobStore(store_path / "below" / "jobs.db")
