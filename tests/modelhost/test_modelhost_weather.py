"""The whole model host on a simulated clock and a card that is measured: arrivals, departures, crashes, hangs, stops,
loads and reloads at random. Nobody is evicted at work, no engine starts without memory, and all can be had afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sbproxy.devices.core.model import Device, Machine
from sbproxy.engines.core.model import EngineBinary, ExitKind, LaunchSpec
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.health import HealthPolicy
from sbproxy.modelhost.core.lifecycle import RestartPolicy
from sbproxy.modelhost.deployment import Deployment
from sbproxy.modelhost.services import Timings
from support.model_host_parts import MIB, ScriptedProcess, World, host_config
from support.virtual_time import Inline, VirtualLoop

SEEDS = 64
PARTS = 8
ONE = 145 * MIB
"""More than any of the made-up models is estimated at, and not enough for two."""
REAL = 130 * MIB
"""What an engine really takes once it is loaded."""
TIMINGS = Timings(
    readiness_s=20,
    stop_grace_s=1,
    restarts=RestartPolicy(first_ms=500, longest_ms=4000, limit=4, stable_after_ms=10_000),
    health=HealthPolicy(period_s=5, retry_s=0.5, timeout_s=1, misses=3),
)


class Town(World):
    """Part of the memory may belong to a stranger; engines take ``REAL`` bytes of it once they are loaded, and the
    driver may hand them back late."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.chance = chance
        self.rooms = chance.choice((1, 2, 3))
        self.foreign = chance.choice((0, 0, 3)) * ONE
        self.total = self.rooms * ONE + self.foreign
        self.lag_s = chance.choice((0, 0, 0.5, 2))
        self.late = 0
        super().__init__(folder, memory=self.total, timings=TIMINGS)
        self.devices.probe = self.probe  # type: ignore[method-assign]
        self.driver.launch = self.launch  # type: ignore[method-assign]
        writer = self.host.jobs._writer
        writer._thread.shutdown()
        writer._thread = Inline()  # type: ignore[assignment]

    def probe(self) -> Machine:
        loaded = sum(process.started.is_set() for process in self.driver.alive) + self.late
        free = max(0, self.total - self.foreign - loaded * REAL)
        return Machine("linux", "x86_64", 2, (Device(-1, "cpu", "system memory", self.total, free),))

    async def launch(self, binary: EngineBinary, spec: LaunchSpec) -> ScriptedProcess:
        loop = asyncio.get_running_loop()
        process = ScriptedProcess(spec)
        self.driver.processes.append(process)
        process.exited.add_done_callback(lambda _: self.hand_back(process))
        assert len(self.driver.alive) <= self.rooms, "more engines than there is memory for"
        if self.chance.random() < 0.05:
            loop.call_later(1, process.die, self.chance.choice((ExitKind.CRASH, ExitKind.OUT_OF_MEMORY)))
        else:
            loop.call_later(self.chance.uniform(0.1, 3), process.started.set)
        return process

    def hand_back(self, process: ScriptedProcess) -> None:
        if process.started.is_set() and self.lag_s:
            self.late += 1
            asyncio.get_running_loop().call_later(self.lag_s, self.handed_back)

    def handed_back(self) -> None:
        self.late -= 1


def shapes(chance: random.Random, rooms: int) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for number in range(chance.randint(2, 4)):
        found[f"d{number}"] = {
            "max_concurrency": chance.choice((1, 2)),
            "replicas": chance.choice((1, 1, 2)) if rooms > 1 else 1,
            "variant": "q4",
            "queue_timeout_ms": chance.choice((5_000, 30_000)),
            "max_queue_depth": chance.choice((2, 50)),
            "keep_alive_secs": chance.choice((None, 0, 3)),
            "rollout": chance.choice(("rolling", "recreate")),
        }
    return found


class Weather:
    """What happens to one town within a minute."""

    def __init__(self, town: Town, chance: random.Random) -> None:
        self.town, self.chance = town, chance
        self.shapes = shapes(chance, town.rooms)
        self.limit = chance.choice((None, None, 1, 2))
        self.contexts = iter(range(64, 9999))
        self.active: Counter[int] = Counter()
        self.outcomes: Counter[str] = Counter()

    async def apply(self, shapes: dict[str, dict[str, object]]) -> None:
        config = host_config(**shapes)
        cache = config.cache.model_copy(update={"max_resident_models": self.limit})
        prepared = await self.town.host.prepare(self.town.catalog, config.model_copy(update={"cache": cache}))
        await prepared.commit()

    async def ask(self, name: str, patience_s: float | None = None) -> None:
        try:
            async with asyncio.timeout(patience_s or self.chance.choice((0.5, 20, 300))):
                permit = await self.town.host.acquire(name, self.chance.choice(("interactive", "standard", "batch")))
        except SbproxyError as refused:
            self.outcomes[str(getattr(refused, "reason", refused.code))] += 1
            return
        except TimeoutError:
            self.outcomes["left"] += 1
            return
        port = permit.endpoint.port
        self.active[port] += 1
        assert self.active[port] <= int(str(self.shapes[name]["max_concurrency"])), "over the cap"
        await asyncio.sleep(self.chance.choice((0.01, 1, 6)))
        self.active[port] -= 1
        permit.release()
        self.outcomes["served"] += 1

    async def disturb(self) -> None:
        host, alive, name = self.town.host, self.town.driver.alive, self.chance.choice(list(self.shapes))
        match self.chance.choice(("stop", "load", "load", "reset", "reload", "crash", "crash", "hang")):
            case "stop":
                await host.stop(name)
            case "load":
                await host.load(name)
            case "reset":
                await host.reset(name)
            case "reload":
                await self.reload(name)
            case "crash" if alive:
                self.chance.choice(alive).die()
            case "hang" if alive:
                self.chance.choice(alive).answers = False

    async def reload(self, name: str) -> None:
        self.shapes[name] = self.shapes[name] | {"max_context": next(self.contexts)}
        commit = asyncio.create_task(self.apply(self.shapes))
        if self.chance.random() < 0.3:
            await asyncio.sleep(self.chance.random() * 4)
            commit.cancel()
        await asyncio.wait((commit,))
        if not commit.cancelled():
            commit.result()

    async def later(self, work: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(self.chance.uniform(0, 60))
        try:
            await work()
        except SbproxyError:
            return

    async def rage(self) -> None:
        async with asyncio.timeout(900), asyncio.TaskGroup() as group:
            for number in range(60):
                name = self.chance.choice(list(self.shapes))
                deed = self.disturb if number % 8 == 0 else lambda name=name: self.ask(name)
                group.create_task(self.later(deed))  # type: ignore[arg-type]

    async def revived(self, name: str) -> bool:
        """Whether a caller is served in the end. Engines go on failing at random, for good where they lack memory."""
        before = self.outcomes["served"]
        for _ in range(8):
            deployment = self.town.host._roster.deployments[name]
            if any(replica.machine.state == "failed" for replica in deployment.replicas):
                await self.town.host.reset(name)
            await self.ask(name, 300)
            if self.outcomes["served"] > before:
                return True
        return False


async def storm(folder: Path, chance: random.Random) -> None:
    town = Town(folder, chance)
    weather = Weather(town, chance)
    await weather.apply(weather.shapes)
    await weather.rage()
    assert weather.active.total() == 0
    for process in town.driver.alive:
        process.answers = True
    async with asyncio.timeout(300):
        while town.host._changing.locked() or town.host.jobs.unfinished:  # noqa: ASYNC110 - no one event tells
            await asyncio.sleep(1)
    for name in weather.shapes:
        assert await weather.revived(name), f"{name} cannot be had any more: {weather.outcomes}"
    residency = town.host._roster.services.residency
    assert all(waiting.wish.resident.urgency == "spare" for waiting in residency._queue)
    assert not any(each.gate._queue.holding for each in town.host._roster)
    await town.close()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is evicted must be idle at that moment."""
    evict = Deployment.evict

    def checked(self: Deployment) -> None:
        assert (self.gate.active, self.gate._queue.due) == (0, 0), f"{self.id} was evicted at work"
        evict(self)

    monkeypatch.setattr(Deployment, "evict", checked)


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("part", range(PARTS))
def test_storms_lose_nobody_and_leave_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        chance = random.Random(seed)
        with asyncio.Runner(loop_factory=lambda chance=chance: VirtualLoop(chance)) as runner:
            try:
                runner.run(storm(tmp_path, chance))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
        assert [entry.getMessage() for entry in caplog.records if entry.exc_info] == [], f"seed {seed}"
        caplog.clear()
