"""Cancelling jobs: what may be taken back and what not, pulls, engine downloads, and what each leaves behind."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from sbproxy.artifacts.core.model import Snapshot
from sbproxy.catalog.core.model import ResolvedArtifact, WheelPin, WorkerFacts
from sbproxy.catalog.core.resolve import resolve
from sbproxy.engines.acquisition import PublishedBuilds, fetch_wheel
from sbproxy.engines.core.model import Availability, EngineBinary
from sbproxy.engines.core.pins import LLAMA_CPP_WHEEL
from sbproxy.engines.driver import AcquireProgress
from sbproxy.errors.artifacts import PullCancelled, TransportFailed
from sbproxy.errors.engines import EngineAcquisitionCancelled, EngineAcquisitionFailed
from sbproxy.errors.modelhost import JobNotCancellable, UnknownJob
from sbproxy.modelhost.core import jobs as core
from sbproxy.modelhost.core.jobs import IRREVOCABLE, JobId, JobKind
from sbproxy.modelhost.engine_supply import EngineSupply
from sbproxy.modelhost.job_desk import JobDesk
from sbproxy.modelhost.pulls import PullDesk
from support.model_host_parts import Counts, MemoryJobs, MemoryStore, ScriptedDriver, World, catalog, eventually


@pytest.fixture
async def desk() -> AsyncIterator[JobDesk]:
    made = JobDesk(MemoryJobs(), time.time)
    yield made
    await made.close()


# --- the desk ---------------------------------------------------------------------------------------------------------


async def test_a_job_with_a_way_back_is_asked_once(desk: JobDesk) -> None:
    job = await desk.open("load", "chat")
    asked: list[str] = []
    job.on_cancel(lambda: asked.append("x"))
    assert (await desk.cancel(job.id)).state == "queued"
    assert (await desk.cancel(job.id)).id == job.id
    assert asked == ["x"]
    assert job.cancel_asked
    job.fail("it was cancelled", "cancelled")
    with pytest.raises(JobNotCancellable, match=r"it has ended \(failed\)"):
        await desk.cancel(job.id)


async def test_whoever_works_for_a_job_may_refuse_and_be_asked_again(desk: JobDesk) -> None:
    job = await desk.open("launch", "chat")
    answers: list[str | None] = ["3 requests wait for it", None]
    job.on_cancel(lambda: answers.pop(0))
    with pytest.raises(JobNotCancellable, match="3 requests wait for it"):
        await desk.cancel(job.id)
    assert not job.cancel_asked
    await desk.cancel(job.id)
    assert job.cancel_asked
    job.fail("x", "cancelled")


@pytest.mark.parametrize("kind", get_args(JobKind))
async def test_without_a_way_back_each_kind_says_why_and_what_to_do(desk: JobDesk, kind: JobKind) -> None:
    job = await desk.open(kind, "chat")
    with pytest.raises(JobNotCancellable) as refused:
        await desk.cancel(job.id)
    assert refused.value.reason == IRREVOCABLE.get(kind, "its work cannot be taken back any more")
    assert refused.value.code == "job_not_cancellable"
    assert (refused.value.job_id, refused.value.kind) == (job.id, kind)


async def test_jobs_of_nobody_and_of_others(desk: JobDesk) -> None:
    with pytest.raises(UnknownJob):
        await desk.cancel(JobId("0" * 26))
    store = MemoryJobs()
    other = JobDesk(store, time.time)
    store.save(core.new_job(JobId("0" * 26), "pull", "one:q4", 1))
    with pytest.raises(JobNotCancellable, match="another process runs it"):
        await other.cancel(JobId("0" * 26))
    await other.close()


# --- pulls ------------------------------------------------------------------------------------------------------------


def artifact() -> ResolvedArtifact:
    facts = WorkerFacts(frozenset({"cpu"}), frozenset({"llama_cpp"}), 1 << 40, None)
    return resolve(catalog(), "one", None, facts, "auto")


class Pulls:
    """A pull desk whose store does not get on until told."""

    def __init__(self, desk: JobDesk, folder: Path) -> None:
        self.jobs = desk
        self.metrics = Counts()
        self.desk = PullDesk(desk, self.metrics)
        self.store = MemoryStore(folder)
        self.store.gate.clear()

    def snapshot(self) -> asyncio.Task[Snapshot]:
        want = self.desk.snapshot(self.store, artifact(), "runtime", "on_boot")
        return asyncio.create_task(want)

    async def only(self) -> core.JobRecord:
        [record] = await self.jobs.list()
        return record


@pytest.fixture
def pulls(desk: JobDesk, tmp_path: Path) -> Pulls:
    return Pulls(desk, tmp_path)


async def test_a_cancelled_pull_tells_all_who_wait_and_is_no_failure_of_the_artifact(pulls: Pulls) -> None:
    waiting = [pulls.snapshot() for _ in range(2)]
    await eventually(lambda: pulls.jobs.unfinished == 1)
    await pulls.jobs.cancel((await pulls.only()).id)
    for each in waiting:
        with pytest.raises(PullCancelled):
            await each
    record = await pulls.only()
    assert (record.state, record.error_code) == ("failed", "cancelled")
    assert record.error is not None
    assert "the part that came is kept" in record.error
    assert pulls.metrics.seen == {}


async def test_an_explicit_pull_can_be_cancelled(pulls: Pulls) -> None:
    job = await pulls.jobs.open("pull", "one:q4")
    task = pulls.desk.begin(pulls.store, artifact(), "explicit", "manual", job)
    await pulls.jobs.cancel(job.id)
    with pytest.raises(PullCancelled):
        await task
    assert (await pulls.only()).error_code == "cancelled"


async def test_who_comes_while_a_cancelled_pull_ends_gets_one_of_their_own(pulls: Pulls) -> None:
    first = pulls.snapshot()
    await eventually(lambda: pulls.jobs.unfinished == 1)
    await pulls.jobs.cancel((await pulls.only()).id)
    second = pulls.snapshot()
    with pytest.raises(PullCancelled):
        await first
    pulls.store.gate.set()
    await second
    assert [record.error_code for record in await pulls.jobs.list()] == ["cancelled", None]


async def test_a_daemon_that_stops_interrupts_its_pulls(pulls: Pulls) -> None:
    waiting = pulls.snapshot()
    await eventually(lambda: pulls.jobs.unfinished == 1)
    await pulls.desk.close()
    with pytest.raises(PullCancelled):
        await waiting
    assert (await pulls.only()).error_code == "interrupted"


async def test_other_failures_keep_their_own_code_and_count(pulls: Pulls) -> None:
    pulls.store.gate.set()
    pulls.store.failures.append(TransportFailed("hub", "reset"))
    with pytest.raises(TransportFailed):
        await pulls.snapshot()
    assert (await pulls.only()).error_code == "transport_failed"
    assert pulls.metrics.seen["downloaded", "failed"] == 1


async def test_a_pull_that_finds_everything_here_is_no_download(pulls: Pulls) -> None:
    pulls.store.gate.set()
    await pulls.snapshot()
    again = pulls.jobs.begin("pull", "one:q4")
    await pulls.desk.begin(pulls.store, artifact(), "explicit", "on_demand", again)
    assert [record.state for record in await pulls.jobs.list()] == ["ready", "ready"]
    assert pulls.metrics.seen["downloaded", "ok"] == 1


# --- engines ----------------------------------------------------------------------------------------------------------

BINARY = EngineBinary("llama_cpp", Path("/bin/llama-server"), "0" * 64, "b1", "wheel", frozenset())


class Fetching(ScriptedDriver):
    """A driver whose fetch goes on until it is told otherwise, or its caller takes the wish back."""

    def __init__(self) -> None:
        super().__init__()
        self.state = "acquirable"
        self.enough = threading.Event()
        self.threads: list[threading.Thread] = []
        self.failure: Exception | None = None

    def acquire(self, progress: AcquireProgress) -> EngineBinary:
        self.threads.append(threading.current_thread())
        done = 0
        while not self.enough.wait(0.005):
            done += 1
            progress("llama.cpp b1", done, 1000)
        if self.failure is not None:
            raise self.failure
        return BINARY


async def only(desk: JobDesk) -> core.JobRecord:
    [record] = await desk.list()
    return record


async def test_several_starts_share_one_fetch(desk: JobDesk) -> None:
    supply, driver = EngineSupply(desk), Fetching()
    asked = [asyncio.create_task(supply.binary(driver)) for _ in range(3)]
    await eventually(lambda: bool(driver.threads))
    asked[0].cancel()
    await asyncio.sleep(0.02)
    driver.enough.set()
    assert [await each for each in asked[1:]] == [BINARY, BINARY]
    assert len(driver.threads) == 1
    record = await only(desk)
    assert (record.kind, record.state, record.progress.current_file) == ("provision", "ready", "llama.cpp b1")


async def test_a_cancelled_provision_tells_all_who_wait(desk: JobDesk) -> None:
    supply, driver = EngineSupply(desk), Fetching()
    asked = [asyncio.create_task(supply.binary(driver)) for _ in range(2)]
    await eventually(lambda: bool(driver.threads))
    await desk.cancel((await only(desk)).id)
    for each in asked:
        with pytest.raises(EngineAcquisitionCancelled):
            await each
    record = await only(desk)
    assert (record.state, record.error_code) == ("failed", "cancelled")


async def test_the_last_start_to_leave_ends_the_fetch_before_it_is_gone(desk: JobDesk) -> None:
    supply, driver = EngineSupply(desk), Fetching()
    asked = [asyncio.create_task(supply.binary(driver)) for _ in range(2)]
    await eventually(lambda: bool(driver.threads))
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert not driver.threads[0].is_alive()
    assert (await only(desk)).error_code == "cancelled"
    driver.enough.set()
    assert await supply.binary(driver) == BINARY


async def test_a_fetch_that_hears_nothing_does_not_keep_the_start_for_ever(
    desk: JobDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbproxy.modelhost.engine_supply.FAREWELL_S", 0.05)
    silent = threading.Event()

    class Silent(Fetching):
        def acquire(self, progress: AcquireProgress) -> EngineBinary:
            self.threads.append(threading.current_thread())
            silent.wait(5)
            progress("llama.cpp b1", 1, 2)
            return BINARY

    supply, driver = EngineSupply(desk), Silent()
    asked = asyncio.create_task(supply.binary(driver))
    await eventually(lambda: bool(driver.threads))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert driver.threads[0].is_alive()
    assert driver.threads[0].daemon, "a process that ends does not wait for it"
    silent.set()
    await eventually(lambda: desk.unfinished == 0)
    assert (await only(desk)).error_code == "cancelled"


async def test_a_fetch_that_fails_keeps_its_own_code(desk: JobDesk) -> None:
    supply, driver = EngineSupply(desk), Fetching()
    driver.failure = EngineAcquisitionFailed("llama_cpp", "wheel", "no such wheel")
    driver.enough.set()
    with pytest.raises(EngineAcquisitionFailed):
        await supply.binary(driver)
    assert (await only(desk)).error_code == "engine_acquisition_failed"


@pytest.fixture
def dead_index() -> Iterator[str]:
    """A package index that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"


def children(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in words:
                found.append(int(entry.name))
    return found


async def started(marker: str) -> None:
    async with asyncio.timeout(10):
        while not await asyncio.to_thread(children, marker):  # noqa: ASYNC110 - a process has no event
            await asyncio.sleep(0.02)


def wheel_driver(root: Path, index: str) -> ScriptedDriver:
    """A driver that fetches by pip, the way the real ones do."""
    wheel = replace(LLAMA_CPP_WHEEL, pin=WheelPin("no-such-engine", "1.0", "0" * 64))
    builds = PublishedBuilds("llama_cpp", root, "llama-server")
    environ = {"PATH": os.environ["PATH"], "PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "9"}

    class Driver(ScriptedDriver):
        def availability(self) -> Availability:
            return Availability(self.name, "acquirable", "by pip")

        def acquire(self, progress: AcquireProgress) -> EngineBinary:
            builds.install("wheel", "0" * 64, fetch_wheel("llama_cpp", wheel, environ), progress)
            raise AssertionError("nothing can come from there")

    return Driver()


@pytest.mark.e2e
async def test_pip_ends_with_the_job_that_it_works_for(desk: JobDesk, tmp_path: Path, dead_index: str) -> None:
    supply, driver = EngineSupply(desk), wheel_driver(tmp_path / "engines", dead_index)
    asked = asyncio.create_task(supply.binary(driver))
    await started(str(tmp_path))
    await desk.cancel((await only(desk)).id)
    async with asyncio.timeout(5):
        with pytest.raises(EngineAcquisitionCancelled):
            await asked
    assert await asyncio.to_thread(children, str(tmp_path)) == []
    left = await asyncio.to_thread(lambda: [path.name for path in (tmp_path / "engines").iterdir()])
    assert left == [".lock"], "nothing of it is kept"


@pytest.mark.e2e
async def test_who_waits_for_another_process_to_fetch_can_be_cancelled(
    desk: JobDesk, tmp_path: Path, dead_index: str
) -> None:
    root = tmp_path / "engines"
    first, second = EngineSupply(desk), EngineSupply(desk)
    one = asyncio.create_task(first.binary(wheel_driver(root, dead_index)))
    await eventually(lambda: desk.unfinished == 1)
    await started(str(tmp_path))
    two = asyncio.create_task(second.binary(wheel_driver(root, dead_index)))
    await eventually(lambda: desk.unfinished == 2)
    waiting = (await desk.list())[1]
    await desk.cancel(waiting.id)
    async with asyncio.timeout(5):
        with pytest.raises(EngineAcquisitionCancelled):
            await two
    assert (await desk.list())[0].state == "running"
    one.cancel()
    await asyncio.gather(one, return_exceptions=True)


# --- starts -----------------------------------------------------------------------------------------------------------


async def slow_load(world: World, **asked: object) -> JobId:
    await world.apply(chat=asked)
    world.driver.script.append("slow")
    job = await world.host.load("chat")
    await eventually(lambda: bool(world.driver.processes))
    return job


async def ends(world: World) -> list[tuple[str, str, str | None]]:
    await eventually(lambda: world.host.jobs.unfinished == 0)
    return [(job.kind, job.state, job.error_code) for job in await world.host.jobs.list() if job.subject == "chat"]


async def test_a_cancelled_load_ends_the_engine_that_starts(world: World) -> None:
    job = await slow_load(world)
    assert (await world.host.jobs.get(job)).state == "running"
    await world.host.jobs.cancel(job)
    assert await ends(world) == [("load", "failed", "cancelled")]
    await world.until("chat", "stopped")
    assert world.driver.alive == []
    (await world.host.acquire("chat", "standard")).release()


async def test_a_load_that_was_cancelled_at_once_starts_nothing(world: World) -> None:
    await world.apply(chat={})
    await world.host.jobs.cancel(await world.host.load("chat"))
    assert await ends(world) == [("load", "failed", "cancelled")]
    assert world.driver.processes == []


async def test_a_cancelled_load_leaves_the_start_to_the_requests_that_wait_for_it(world: World) -> None:
    job = await slow_load(world)
    asked = asyncio.create_task(world.host.acquire("chat", "standard"))
    await asyncio.sleep(0.01)
    await world.host.jobs.cancel(job)
    await eventually(lambda: world.host.jobs.unfinished == 0)
    world.driver.processes[0].started.set()
    (await asked).release()
    assert await ends(world) == [("load", "failed", "cancelled")]


async def test_one_of_two_loads_is_cancelled_alone(world: World) -> None:
    first = await slow_load(world)
    await world.host.load("chat")
    await asyncio.sleep(0.01)
    await world.host.jobs.cancel(first)
    await asyncio.sleep(0.01)
    world.driver.processes[0].started.set()
    assert await ends(world) == [("load", "failed", "cancelled"), ("load", "ready", None)]
    assert world.row("chat")["state"] == "ready"


async def test_a_cancelled_load_ends_the_pull_that_only_it_wanted(world: World) -> None:
    world.store.gate.clear()
    await world.apply(chat={})
    job = await world.host.load("chat")
    await eventually(lambda: bool(world.store.fetches))
    await world.host.jobs.cancel(job)
    await world.until("chat", "stopped")
    await eventually(lambda: world.host.jobs.unfinished == 0)
    assert {(each.kind, each.error_code) for each in await world.host.jobs.list()} == {
        ("load", "cancelled"),
        ("pull", "cancelled"),
    }


async def test_a_pull_cancelled_under_a_load_is_the_loads_failure(world: World) -> None:
    world.store.gate.clear()
    await world.apply(chat={})
    await world.host.load("chat")
    await eventually(lambda: bool(world.store.fetches))
    [pull] = [job for job in await world.host.jobs.list() if job.kind == "pull"]
    await world.host.jobs.cancel(pull.id)
    assert await ends(world) == [("load", "failed", "pull_cancelled")]
    assert world.row("chat")["reason_code"] == "pull_cancelled"
    world.store.gate.set()
    (await world.host.acquire("chat", "standard")).release()


async def test_a_launch_that_requests_wait_for_is_not_taken_from_them(world: World) -> None:
    await world.apply(chat={})
    world.driver.script.append("slow")
    asked = asyncio.create_task(world.host.acquire("chat", "standard"))
    await eventually(lambda: bool(world.driver.processes))
    [launch] = [job for job in await world.host.jobs.list() if job.kind == "launch"]
    with pytest.raises(JobNotCancellable, match=r"requests wait for the same start \(1\); stop the deployment"):
        await world.host.jobs.cancel(launch.id)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await world.host.jobs.cancel(launch.id)
    assert await ends(world) == [("launch", "failed", "cancelled")]
    await world.until("chat", "stopped")


async def test_a_stop_is_not_taken_back(world: World) -> None:
    await world.apply(chat={"warm": True})
    permit = await world.host.acquire("chat", "standard")
    job = await world.host.stop("chat")
    await world.until("chat", "draining")
    with pytest.raises(JobNotCancellable, match="a stop that has begun goes to its end"):
        await world.host.jobs.cancel(job)
    permit.release()
    assert await ends(world) == [("launch", "ready", None), ("stop", "ready", None)]
