"""A job store that takes nothing for a while: work goes on, records are held, an unreadable store is a typed error."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sbproxy.errors.modelhost import JobStoreUnusable, UnknownJob
from sbproxy.modelhost import job_store, job_writer
from sbproxy.modelhost.core import jobs as core
from sbproxy.modelhost.core.jobs import JobId
from sbproxy.modelhost.job_desk import JobDesk
from sbproxy.modelhost.job_store import KEEP_FINISHED, SqliteJobStore
from support.model_host_parts import MemoryJobs

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_store, "BUSY_TIMEOUT_S", 0.02)
    monkeypatch.setattr(job_store, "OPEN_TIMEOUT_S", 0.05)
    monkeypatch.setattr(job_writer, "RETRY_S", 0.0)


class Locked:
    """A desk over a file whose write lock another connection can take."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = SqliteJobStore(path)
        self.other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    async def lock(self) -> None:
        await asyncio.to_thread(self.other.execute, "BEGIN IMMEDIATE")

    async def unlock(self) -> None:
        await asyncio.to_thread(self.other.execute, "ROLLBACK")

    async def stored(self) -> list[tuple[str, str]]:
        return [(job.kind, job.state) for job in await asyncio.to_thread(self.store.jobs)]


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Locked]:
    made = await asyncio.to_thread(Locked, tmp_path / "jobs.db")
    yield made
    await asyncio.to_thread(made.other.close)
    await asyncio.to_thread(made.store.close)


async def test_a_locked_store_delays_no_operation_and_gets_every_record_later(
    locked: Locked, caplog: pytest.LogCaptureFixture
) -> None:
    desk = JobDesk(locked.store, time.time)
    await locked.lock()
    stop = await desk.open("stop", "chat")
    stop.run()
    stop.finish(note="nothing was cut")
    load = await desk.open("load", "chat")
    assert [(job.kind, job.state) for job in await desk.list()] == [("stop", "ready"), ("load", "queued")]
    assert (await desk.get(stop.id)).note == "nothing was cut"
    assert await locked.stored() == []
    await locked.unlock()
    load.run()
    await desk.list()
    assert await locked.stored() == [("stop", "ready"), ("load", "running")]
    await desk.close()
    assert await locked.stored() == [("stop", "ready"), ("load", "failed")]
    assert [record.message.split()[0] for record in caplog.records if record.name == job_writer.__name__] == [
        "job_store_refuses",
        "job_store_recovered",
    ]


async def test_what_is_held_when_the_daemon_stops_is_tried_once_more(locked: Locked) -> None:
    desk = JobDesk(locked.store, time.time)
    await locked.lock()
    (await desk.open("stop", "chat")).finish()
    await locked.unlock()
    await desk.close()
    assert await locked.stored() == [("stop", "ready")]


async def test_records_that_are_lost_with_the_process_are_said_out_loud(
    locked: Locked, caplog: pytest.LogCaptureFixture
) -> None:
    desk = JobDesk(locked.store, time.time)
    await locked.lock()
    (await desk.open("stop", "chat")).finish()
    await desk.close()
    assert "1 job records are lost with this process" in caplog.text
    await locked.unlock()


async def test_a_store_that_refused_is_not_asked_for_every_event(
    locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_writer, "RETRY_S", 3600.0)
    monkeypatch.setattr(job_store, "BUSY_TIMEOUT_S", 0.2)
    desk = JobDesk(locked.store, time.time)
    await locked.lock()
    job = await desk.open("load", "chat")
    started = time.perf_counter()
    for _ in range(50):
        job.run()
    await desk.list()
    assert time.perf_counter() - started < 1
    await locked.unlock()
    job.finish()
    await desk.close()
    assert await locked.stored() == [("load", "ready")]


async def test_a_store_that_cannot_be_read_is_a_typed_error_and_open_jobs_are_still_shown(locked: Locked) -> None:
    desk = JobDesk(locked.store, time.time)
    job = await desk.open("load", "chat")
    await asyncio.to_thread(locked.store.close)
    assert (await desk.get(job.id)).state == "queued"
    with pytest.raises(JobStoreUnusable, match=r"jobs\.db"):
        await desk.list()
    with pytest.raises(JobStoreUnusable):
        await desk.get(JobId("0" * 26))
    job.finish()
    await desk.close()


async def test_a_store_that_became_read_only_is_held_for_too(locked: Locked) -> None:
    desk = JobDesk(locked.store, time.time)
    # What SQLite says of a file on a disk that was mounted anew without leave to write.
    await asyncio.to_thread(locked.store._db.execute, "PRAGMA query_only = ON")
    job = await desk.open("load", "chat")
    job.finish()
    assert [(each.kind, each.state) for each in await desk.list()] == [("load", "ready")]
    assert await locked.stored() == []
    await asyncio.to_thread(locked.store._db.execute, "PRAGMA query_only = OFF")
    await desk.close()
    assert await locked.stored() == [("load", "ready")]


async def test_only_so_many_finished_records_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_writer, "MAX_HELD", 3)

    class Refusing(MemoryJobs):
        def save(self, job: core.JobRecord) -> None:
            raise JobStoreUnusable("/somewhere", "no space left on device")

    desk = JobDesk(Refusing(), time.time)
    running = await desk.open("load", "long")
    ended = [await desk.open("stop", f"chat{number}") for number in range(5)]
    for job in ended:
        job.finish()
    assert [job.subject for job in await desk.list()] == ["long", "chat2", "chat3", "chat4"]
    with pytest.raises(UnknownJob):
        await desk.get(ended[0].id)
    running.finish()
    await desk.close()


async def test_a_locked_file_at_the_start_is_named(locked: Locked) -> None:
    await locked.lock()
    with pytest.raises(JobStoreUnusable, match="locked"):
        await asyncio.to_thread(SqliteJobStore, locked.path)
    await locked.unlock()


FULL = """
import asyncio, resource, sys, time
from pathlib import Path
from sbproxy.modelhost.job_desk import JobDesk
from sbproxy.modelhost.job_store import SqliteJobStore
async def main():
    desk = JobDesk(SqliteJobStore(Path(sys.argv[1])), time.time)
    (await desk.open("load", "before")).finish()
    await desk.list()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    for number in range(100):
        job = await desk.open("stop", "chat" * 100)
        job.run()
        job.finish()
    print(len(await desk.list()), flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await desk.close()
asyncio.run(main())
"""


@pytest.mark.e2e
def test_a_full_disk_stops_no_operation_and_loses_no_record_once_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    run = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=30)
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    assert "job_store_refuses" in run.stderr
    assert run.stdout == "101\n"
    store = SqliteJobStore(path)
    assert [job.state for job in store.jobs()] == ["ready"] * 101
    store.close()


def test_jobs_that_ended_in_one_moment_are_bounded_too(tmp_path: Path) -> None:
    store = SqliteJobStore(tmp_path / "jobs.db", now=lambda: 1000.0)
    ids = [JobId(f"01ARZ3NDEK{number:016d}") for number in range(KEEP_FINISHED + 30)]
    for job_id in ids:
        store.save(core.move(core.new_job(job_id, "load", "chat", 1_000_000), "ready", 1_000_000))
    assert [job.id for job in store.jobs()] == ids[30:]
    store.close()


class Halting(MemoryJobs):
    """A store whose first write takes until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def save(self, job: core.JobRecord) -> None:
        self.go_on.wait(5)
        super().save(job)


async def test_an_opener_that_leaves_before_its_record_is_written_is_no_defect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Halting()
    desk = JobDesk(store, time.time)
    slow = asyncio.create_task(desk.open("pull", "one"))
    leaving = asyncio.create_task(desk.open("load", "chat"))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    store.go_on.set()
    (await slow).fail("enough", "test")
    assert [(job.kind, job.state) for job in await desk.list()] == [("pull", "failed"), ("load", "failed")]
    await desk.close()
    assert caplog.records == []
