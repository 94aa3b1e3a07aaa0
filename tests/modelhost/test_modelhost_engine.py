"""The host over the real llama.cpp driver and the fake llama-server: processes, files and signals are real."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sbproxy.config.core.model_host import EngineConfig, ModelHostConfig
from sbproxy.engines.llama_cpp import LlamaCppDriver
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.errors.engines import EngineLaunchFailed
from sbproxy.errors.modelhost import AdmissionRejected
from sbproxy.modelhost.core.health import HealthPolicy
from sbproxy.modelhost.core.lifecycle import RestartPolicy
from sbproxy.modelhost.host import ModelHost
from sbproxy.modelhost.job_store import SqliteJobStore
from sbproxy.modelhost.services import Timings
from support import fake_engine
from support.model_host_parts import Counts, Drivers, FixedDevices, MemoryStore, catalog, eventually, host_config

pytestmark = pytest.mark.e2e

TIMINGS = Timings(
    readiness_s=10,
    stop_grace_s=1,
    restarts=RestartPolicy(first_ms=20, longest_ms=50, limit=3, stable_after_ms=60_000),
    health=HealthPolicy(period_s=0.1, retry_s=0.05, timeout_s=0.3, misses=3),
)


class Real:
    """A host with real processes; ``folder`` steers what the next engine does."""

    def __init__(self, folder: Path, host: ModelHost) -> None:
        self.folder = folder
        self.host = host

    def running(self) -> list[fake_engine.Instance]:
        return fake_engine.instances(self.folder)

    async def apply(self, **deployments: dict[str, object]) -> None:
        await (await self.host.prepare(self.host.catalog, self.config(**deployments))).commit()

    def config(self, **deployments: dict[str, object]) -> ModelHostConfig:
        whole = host_config(**deployments).model_dump()
        whole["engines"] = {"llama_cpp": {"path": str(self.folder / "llama-server")}}
        return ModelHostConfig.model_validate(whole)

    def state(self) -> str:
        return self.host.status()[0].state


def llama_cpp(config: EngineConfig, folder: Path) -> LlamaCppDriver:
    return LlamaCppDriver(
        config,
        engines_root=folder / "engines",
        run_dir=folder / "engines" / "run",
        ownership=OwnershipLedger(folder / "owners"),
        environ={"PATH": os.environ["PATH"]},
        network=False,
    )


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Real]:
    folder = tmp_path / "engine"
    program = await asyncio.to_thread(fake_engine.install, folder)
    config = EngineConfig(path=str(program))
    driver = await asyncio.to_thread(llama_cpp, config, tmp_path)
    jobs = await asyncio.to_thread(SqliteJobStore, tmp_path / "jobs.db")
    store = MemoryStore(tmp_path)
    host = ModelHost(
        catalog=catalog(),
        config=ModelHostConfig(engines={"llama_cpp": config}),
        store=store,
        drivers=Drivers(llama_cpp=driver),
        devices=FixedDevices(),
        jobs=jobs,
        metrics=Counts(),
        timings=TIMINGS,
    )
    made = Real(folder, host)
    yield made
    await host.close()
    await asyncio.to_thread(jobs.close)
    assert made.running() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not +store.leases


async def test_a_cold_request_starts_one_process_that_answers(real: Real) -> None:
    await real.apply(chat={"max_context": 256, "max_concurrency": 4})
    permits = await asyncio.gather(*(real.host.acquire("chat", "standard") for _ in range(4)))
    [engine] = real.running()
    row = real.host.status()[0]
    assert (row.pid, row.port, row.engine_version) == (engine.pid, engine.port, row.engine_version)
    assert row.engine_version
    assert permits[0].endpoint.port == engine.port
    assert permits[0].endpoint.api_key not in " ".join(engine.argv)
    await real.host.refresh()
    resident = real.host.status()[0].resident_bytes
    assert resident is not None
    assert resident > 1 << 20
    for permit in permits:
        permit.release()


async def test_kill_9_of_the_engine_heals_and_leaks_nothing(real: Real) -> None:
    await real.apply(chat={"warm": True})
    permit = await real.host.acquire("chat", "standard")
    [engine] = real.running()
    os.kill(engine.pid, signal.SIGKILL)
    await eventually(lambda: real.state() != "ready")
    permit.engine_failed("connection reset")
    (await real.host.acquire("chat", "standard")).release()
    permit.release()
    [other] = real.running()
    assert other.pid != engine.pid
    assert real.host.status()[0].active_requests == 0


async def test_an_engine_that_hangs_is_killed_and_replaced(real: Real) -> None:
    await real.apply(chat={"warm": True})
    permit = await real.host.acquire("chat", "standard")
    [engine] = real.running()
    os.kill(engine.pid, signal.SIGSTOP)
    await eventually(lambda: real.host.status()[0].stop_cause == "unresponsive")
    await eventually(lambda: not fake_engine.alive(engine.pid))
    with contextlib.suppress(AdmissionRejected):  # the rest of the kill may still be under way
        (await real.host.acquire("chat", "standard")).release()
    await eventually(lambda: real.state() == "ready")
    [other] = real.running()
    assert other.pid != engine.pid
    permit.release()
    assert real.host.status()[0].active_requests == 0


async def test_an_engine_that_pauses_for_less_than_that_lives(real: Real) -> None:
    await real.apply(chat={"warm": True})
    [engine] = real.running()
    os.kill(engine.pid, signal.SIGSTOP)
    await asyncio.sleep(0.5)  # at least one missed check, at most two
    os.kill(engine.pid, signal.SIGCONT)
    await asyncio.sleep(1.2)
    assert [each.pid for each in real.running()] == [engine.pid]
    assert real.state() == "ready"


@pytest.mark.parametrize(("mode", "verdict"), [("bad_file", "bad_file"), ("oom_exit", "out_of_memory")])
async def test_a_hopeless_start_is_typed_and_held(real: Real, mode: str, verdict: str) -> None:
    await asyncio.to_thread(fake_engine.configure, real.folder, mode=mode)
    await real.apply(chat={})
    with pytest.raises(EngineLaunchFailed) as failed:
        await real.host.acquire("chat", "standard")
    assert failed.value.verdict == verdict
    with pytest.raises(AdmissionRejected, match="engine_unhealthy"):
        await real.host.acquire("chat", "standard")
    await asyncio.to_thread(fake_engine.configure, real.folder)
    assert (await real.host.reset("chat")).state == "configured"
    (await real.host.acquire("chat", "standard")).release()


async def test_crashes_at_start_end_in_a_crash_loop(real: Real) -> None:
    await asyncio.to_thread(fake_engine.configure, real.folder, mode="crash_on_start")
    await real.apply(chat={})
    with pytest.raises(EngineLaunchFailed):
        await real.host.acquire("chat", "standard")
    await eventually(lambda: real.host.status()[0].reason_code == "crash_loop")
    with pytest.raises(AdmissionRejected, match="crash_loop"):
        await real.host.acquire("chat", "standard")


async def test_an_engine_that_ignores_term_is_killed_after_drain_and_grace(real: Real) -> None:
    await asyncio.to_thread(fake_engine.configure, real.folder, ignore_term=True)
    await real.apply(chat={"warm": True})
    permit = await real.host.acquire("chat", "standard")
    started = time.monotonic()
    await real.host.stop("chat")
    await eventually(lambda: real.state() == "draining")
    async with asyncio.timeout(5):
        while real.state() != "stopped":  # noqa: ASYNC110 - a state of the host has no event
            await asyncio.sleep(0.01)
    assert 1.2 <= time.monotonic() - started < 3  # shutdown_deadline_ms 300 and one second of grace
    assert real.running() == []
    permit.release()


async def test_reload_keeps_the_pid_of_an_unchanged_generation(real: Real) -> None:
    await real.apply(chat={"warm": True})
    [engine] = real.running()
    await real.apply(chat={"warm": True}, second={"model": "two", "warm": True})
    assert len(real.running()) == 2
    await real.apply(chat={"warm": True})
    await eventually(lambda: len(real.host.status()) == 1)
    assert [each.pid for each in real.running()] == [engine.pid]
