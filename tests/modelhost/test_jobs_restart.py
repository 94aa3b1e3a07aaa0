"""Job streams over restarts of the daemon and beside other processes: numbers, gaps, stored states, interruption."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster

from sbproxy.modelhost import job_desk
from sbproxy.modelhost.core import jobs as core
from sbproxy.modelhost.core.jobs import JobId, JobProgress
from sbproxy.modelhost.job_desk import JobDesk
from sbproxy.modelhost.job_feed import Gap, JobEvent
from sbproxy.modelhost.job_store import UNSTORED_EVENTS, SqliteJobStore

FOREIGN = JobId("01ARZ3NDEKTSV4RRFFQ69G5FAV")


class Daemons:
    """One daemon after the other over one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.desk: JobDesk
        self.store: SqliteJobStore

    async def start(self) -> JobDesk:
        self.store = await asyncio.to_thread(SqliteJobStore, self.path)
        self.desk = JobDesk(self.store, time.time)
        return self.desk

    async def stop(self) -> None:
        await self.desk.close()
        await asyncio.to_thread(self.store.close)


@pytest.fixture
async def daemons(tmp_path: Path) -> AsyncIterator[Daemons]:
    made = Daemons(tmp_path / "jobs.db")
    yield made
    await made.stop()


async def take(desk: JobDesk, job: JobId | None, after: int | None, count: int) -> list[JobEvent | Gap]:
    items: list[JobEvent | Gap] = []
    stream = desk.follow(job, after)
    async with asyncio.timeout(3):
        async for item in stream:
            items.append(item)
            if len(items) == count:
                break
    await stream.aclose()  # type: ignore[attr-defined]
    return items


def told(items: list[JobEvent | Gap]) -> list[tuple[int, str, str]]:
    return [(item.sequence, item.job.kind, item.job.state) for item in items if isinstance(item, JobEvent)]


async def test_a_new_store_counts_from_nought_and_the_next_process_goes_on_behind(daemons: Daemons) -> None:
    desk = await daemons.start()
    job = await desk.open("load", "chat")
    assert desk.feed.first == 0
    job.run()
    job.finish()
    await daemons.stop()
    desk = await daemons.start()
    assert desk.feed.first == 3 + UNSTORED_EVENTS
    again = await desk.open("load", "chat")
    assert again.record.sequence == 3 + UNSTORED_EVENTS
    again.finish()


async def test_commands_without_a_daemon_leave_the_count_alone(daemons: Daemons) -> None:
    store = await asyncio.to_thread(SqliteJobStore, daemons.path)
    done = core.move(core.new_job(FOREIGN, "pull", "one:q4", int(time.time() * 1000)), "ready", 0)
    await asyncio.to_thread(store.save, done)
    await asyncio.to_thread(store.close)
    assert (await daemons.start()).feed.first == 0


async def test_all_jobs_after_a_restart_are_a_gap_and_what_has_moved_since(daemons: Daemons) -> None:
    desk = await daemons.start()
    before = await desk.open("load", "seen")
    before.finish()  # 0, 1
    ended = await desk.open("stop", "chat")
    ended.run()
    ended.finish()  # 2, 3, 4
    await desk.open("pull", "one:q4")  # 5, and 6 when the daemon stops
    await daemons.stop()
    desk = await daemons.start()
    first = desk.feed.first
    after = await desk.open("load", "new")
    items = await take(desk, None, 1, 4)
    assert items[0] == Gap(2, first - 1, resume=1)
    assert told(items) == [(4, "stop", "ready"), (6, "pull", "failed"), (first, "load", "queued")]
    interrupted = items[2]
    assert isinstance(interrupted, JobEvent)
    assert interrupted.job.error_code == "interrupted"
    after.finish()


@pytest.mark.parametrize("read", [1, 2, 3, 4])
async def test_a_reader_may_break_off_anywhere_and_misses_nothing(daemons: Daemons, read: int) -> None:
    desk = await daemons.start()
    for name in ("a", "b", "c"):
        (await desk.open("load", name)).finish()
    await daemons.stop()
    desk = await daemons.start()
    seen = await take(desk, None, 0, read)
    last = seen[-1]
    resume = last.sequence if isinstance(last, JobEvent) else last.resume
    assert resume is not None
    live = await desk.open("load", "d")
    rest = await take(desk, None, resume, 1 + 4 - (read - 1))
    assert isinstance(rest[0], Gap)
    assert told(seen + rest) == [
        (1, "load", "ready"), (3, "load", "ready"), (5, "load", "ready"), (live.record.sequence, "load", "queued")
    ]  # fmt: skip
    live.finish()


async def test_a_reader_that_is_up_to_date_with_the_old_process_is_told_of_the_new_one_only(daemons: Daemons) -> None:
    desk = await daemons.start()
    (await desk.open("load", "a")).finish()
    await daemons.stop()
    desk = await daemons.start()
    job = await desk.open("load", "b")
    assert told(await take(desk, None, 1, 2)) == [(desk.feed.first, "load", "queued")]
    assert told(await take(desk, None, desk.feed.first - 1, 1)) == [(desk.feed.first, "load", "queued")]
    job.finish()


async def test_one_job_over_a_restart_ends_with_its_stored_state(daemons: Daemons) -> None:
    desk = await daemons.start()
    job = await desk.open("pull", "one:q4")
    other = await desk.open("load", "chat")
    other.run()
    job.run("downloading")
    await daemons.stop()
    desk = await daemons.start()
    sequence = (await desk.get(job.id)).sequence
    assert sequence is not None
    items = await take(desk, job.id, 0, 9)
    assert items[0] == Gap(1, sequence - 1, resume=0)
    assert told(items) == [(sequence, "pull", "failed")]
    assert told(await take(desk, job.id, None, 9)) == [(sequence, "pull", "failed")]
    # The next event after the last one that was read: nothing is missing, so there is no gap.
    assert [type(item) for item in await take(desk, job.id, sequence - 1, 9)] == [JobEvent]
    assert await take(desk, job.id, sequence, 9) == []


KILLED = """
import asyncio, sys, time
from pathlib import Path
from sbproxy.modelhost.job_desk import JobDesk
from sbproxy.modelhost.job_store import SqliteJobStore
async def main():
    desk = JobDesk(SqliteJobStore(Path(sys.argv[1])), time.time)
    job = await desk.open("pull", "one:q4")
    job.run("downloading")
    await desk.list()
    print(job.id, job.record.sequence, flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


@pytest.mark.e2e
async def test_a_daemon_that_was_killed_leaves_its_jobs_interrupted_under_a_number_of_their_own(
    daemons: Daemons, blockbuster: BlockBuster
) -> None:
    blockbuster.deactivate()
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(daemons.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        name, sequence = child.stdout.readline().split()
        store = SqliteJobStore(daemons.path)
        assert [job.state for job in store.jobs()] == ["downloading"]
        child.kill()
        child.wait()
    # A process that only reads sees it too: nobody waits for a job of the dead.
    [dead] = store.jobs()
    assert (dead.state, dead.error_code) == ("failed", "interrupted")
    store.close()
    desk = await daemons.start()
    record = await desk.get(JobId(name))
    assert (record.state, record.error_code) == ("failed", "interrupted")
    [last] = told(await take(desk, JobId(name), int(sequence) - 1, 9))[-1:]
    assert last[2] == "failed"


@pytest.mark.e2e
async def test_a_restart_numbers_what_it_interrupts(daemons: Daemons, blockbuster: BlockBuster) -> None:
    blockbuster.deactivate()
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(daemons.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        name, sequence = child.stdout.readline().split()
        child.kill()
        child.wait()
    desk = await daemons.start()
    record = await desk.get(JobId(name))
    # Also a reader that had seen more than was stored is told.
    assert record.sequence is not None
    assert int(sequence) + 1000 < record.sequence < desk.feed.first
    items = await take(desk, None, int(sequence), 2)
    assert isinstance(items[0], Gap)
    assert told(items) == [(record.sequence, "pull", "failed")]


async def test_the_job_of_another_live_process_is_followed_to_its_end(
    daemons: Daemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_desk, "FOREIGN_LOOK_S", 0.01)
    desk = await daemons.start()
    other = await asyncio.to_thread(SqliteJobStore, daemons.path)
    job = core.new_job(FOREIGN, "pull", "one:q4", int(time.time() * 1000))
    await asyncio.to_thread(other.save, job)
    states: list[str] = []

    async def follow() -> None:
        async for item in desk.follow(FOREIGN, None):
            assert isinstance(item, JobEvent)
            states.append(f"{item.job.state} {item.job.progress.completed_bytes}")

    async def both(seen: str) -> None:
        async with asyncio.timeout(3):
            while states.count(seen) < 2:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)

    followers = [asyncio.create_task(follow()) for _ in range(2)]
    await both("queued 0")
    for done in (5, 9):
        job = core.move(job, "downloading", job.updated_at_ms, progress=JobProgress(done, 10, "f"))
        await asyncio.to_thread(other.save, job)
        await both(f"downloading {done}")
    await asyncio.to_thread(other.save, core.move(job, "failed", 0, error="x", error_code="transport_failed"))
    async with asyncio.timeout(3):
        await asyncio.gather(*followers)
    assert states.count("failed 9") == 2
    assert len(states) == 8, "however many follow, each move is told once"
    assert desk.unfinished == 0
    await asyncio.to_thread(other.close)
