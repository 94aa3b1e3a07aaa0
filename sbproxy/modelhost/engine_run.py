"""One attempt of one generation: from artifact to engine process to its end. Does, and reports as lifecycle events.

What an event leads to is ``core.lifecycle``; who is let in meanwhile is the gate's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from sbproxy.artifacts.core.model import PullIntent, Snapshot
from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.devices.core.model import DeviceKind, Machine
from sbproxy.engines.core.model import EngineBinary, ExitKind, ExitVerdict, LaunchSpec
from sbproxy.engines.driver import EngineDriver, EngineProcess
from sbproxy.errors.artifacts import ArtifactError
from sbproxy.errors.engines import EngineIncompatible, EngineLaunchFailed, EngineStopFailed
from sbproxy.errors.modelhost import InsufficientMemory
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.events import (
    ArtifactVerified,
    EngineExited,
    EngineReady,
    EngineStopped,
    EngineUnresponsive,
    Event,
    PreparationFailed,
)
from sbproxy.modelhost.core.gguf import ModelShape
from sbproxy.modelhost.core.memory_fit import Demand
from sbproxy.modelhost.core.placement import Option, Policy, kernel_gap, kinds, options, shortfall, spills
from sbproxy.modelhost.core.residency import Claim
from sbproxy.modelhost.demand import demand_of, described, launch_spec, no_device, policy_of
from sbproxy.modelhost.health_watch import HealthWatch
from sbproxy.modelhost.ledger import Resident
from sbproxy.modelhost.model_shape import shape_of
from sbproxy.modelhost.residency import Wish
from sbproxy.modelhost.services import Services

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class _StopAsked(Exception):
    """The run was told to end before it was done."""


class Owner(Resident, Protocol):
    """The deployment that a run works for."""

    id: str
    generation: int
    config: DeploymentConfig
    artifact: ResolvedArtifact


class EngineRun:
    """``prepare`` and then ``launch`` run as tasks; both end by themselves soon after ``stop``.

    Each ends with exactly one event that ends the run or carries it on, given to ``report`` after memory was released.
    """

    def __init__(
        self,
        owner: Owner,
        replica: int,
        services: Services,
        report: Callable[[Event], None],
        waits: Callable[[Callable[[], str] | None], None],
        healthy: Callable[[], None],
    ) -> None:
        self._owner = owner
        self._holder = (owner.id, owner.generation, replica)
        self._config = owner.config
        self._artifact = owner.artifact
        self._services = services
        self._report = report
        self._waits = waits
        self._healthy = healthy
        self._stop = asyncio.Event()
        self._snapshot: Snapshot | None = None
        self._health: HealthWatch | None = None
        self.process: EngineProcess | None = None
        self.pid: int | None = None
        """Of the latest process, also once it has ended."""
        self.binary: EngineBinary | None = None
        self.stop_failure: EngineStopFailed | None = None

    def stop(self) -> None:
        """TERM the engine, or give up what leads to it; EngineStopped follows."""
        self._stop.set()

    def suspect(self) -> None:
        """A request failed on the engine although it runs: its health is asked for soon."""
        if self._health is not None:
            self._health.suspect()

    async def prepare(self, intent: PullIntent) -> None:
        services = self._services
        pull = services.pulls.snapshot(services.store, self._artifact, intent, self._config.pull)
        try:
            self._snapshot = await self._unless_stopped(pull)
        except _StopAsked:
            self._report(EngineStopped())
        except SbproxyError as error:
            self._report(self._not_prepared(error))
        except asyncio.CancelledError:
            self._report(self._broken("its task was cancelled"))
            raise
        except Exception as error:  # the top of the run's task: a defect must not leave the generation half started
            log.exception("preparation of %s generation %d replica %d broke", *self._holder)
            self._report(self._broken(f"internal error: {error!r}"))
        else:
            self._report(ArtifactVerified())

    def _broken(self, detail: str) -> Event:
        return self._not_prepared(EngineLaunchFailed(self._artifact.engine, ExitKind.CRASH, detail))

    async def launch(self) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            raise RuntimeError("launch before prepare")
        reported = False
        try:
            async with self._leased():
                event = await self._outcome(snapshot)
                self._over()
                reported = True
                self._report(event)
        except ArtifactError as error:
            self._report(self._not_prepared(error))
        except Exception as error:  # the top of the run's task: a defect must not leave the generation half started
            log.exception("the lease of %s generation %d replica %d broke", *self._holder)
            if not reported:
                self._report(self._crashed(f"internal error: {error!r}"))
        except asyncio.CancelledError:
            if not reported:
                self._over()
                self._report(EngineStopped() if self._stop.is_set() else self._crashed("its task was cancelled"))
            raise

    def _over(self) -> None:
        """Before the report: whoever hears it may start the next run and reserve again. The lease goes after it, so
        that a crash closes the gate at once."""
        self.process = None
        self._services.ledger.release(self._holder)

    async def _outcome(self, snapshot: Snapshot) -> Event:
        try:
            return await self._live(snapshot)
        except _StopAsked:
            return EngineStopped()
        except SbproxyError as error:
            if self.process is None:
                return self._not_prepared(error)
            return await self._defect(self.process, error)
        except Exception as error:  # noqa: BLE001 - the top of the run's task: a defect must not wedge the generation
            return await self._defect(self.process, error)

    async def _defect(self, process: EngineProcess | None, error: Exception) -> Event:
        log.error("run of %s generation %d replica %d broke", *self._holder, exc_info=error)
        if process is not None:
            try:
                await self._end(process)
            except Exception:  # still at the top of the task: the event is what counts
                log.exception("%s: the engine (pid %d) could not be ended", self._holder[0], process.pid)
        return self._crashed(f"internal error: {error!r}")

    def _crashed(self, detail: str) -> Event:
        return EngineExited(ExitVerdict(ExitKind.CRASH, None, detail), None)

    def _not_prepared(self, error: SbproxyError) -> Event:
        """A failure of a run that was told to stop is only its end."""
        if self._stop.is_set():
            return EngineStopped()
        self._services.metrics.ensure_failed(error.code)
        if isinstance(error, InsufficientMemory):
            self._services.metrics.placement_rejected(error.deployment, error.code)
        return PreparationFailed(error)

    async def _live(self, snapshot: Snapshot) -> Event:
        services = self._services
        driver = services.drivers.for_deployment(self._artifact.engine, self._config)
        self.binary = binary = await self._unless_stopped(services.supply.binary(driver))
        shape, machine = await asyncio.to_thread(self._look, snapshot)
        option, spec = await self._placed(driver, binary, snapshot, shape, machine)
        if self._stop.is_set():
            raise _StopAsked
        started = asyncio.get_running_loop().time()
        self.process = process = await driver.launch(binary, spec)
        self.pid = process.pid
        log.info(
            "launch_started deployment=%s generation=%d replica=%d pid=%d device=%s",
            *self._holder,
            process.pid,
            "+".join(device.name for device in option.devices),
        )
        return await self._watch(process, started)

    def _look(self, snapshot: Snapshot) -> tuple[ModelShape | None, Machine]:
        """Blocking."""
        return shape_of(self._artifact, snapshot.path), self._services.devices.probe()

    async def _placed(
        self, driver: EngineDriver, binary: EngineBinary, snapshot: Snapshot, shape: ModelShape | None, machine: Machine
    ) -> tuple[Option, LaunchSpec]:
        """Reserve room on devices that the engine build can use, and return the launch for it."""
        services = self._services
        policy = policy_of(self._artifact, self._config, services.config)
        demand = demand_of(self._artifact, self._config, shape)
        taken = services.ledger.devices_of(self._holder[:2])
        refused: EngineIncompatible | None = None
        for kind in kinds(machine, policy):
            gap = kernel_gap(machine, kind, demand)
            if gap is not None:
                refused = EngineIncompatible(self._artifact.engine, gap)
                continue
            found = options(machine, kind, demand, policy, taken)
            if not found:
                refused = self._none_left(machine, kind, taken)
                continue
            try:
                spec = launch_spec(self._holder, self._config, snapshot, self._artifact, demand, found[0])
                await asyncio.to_thread(driver.check, self._artifact, spec, binary)
            except EngineIncompatible as error:
                refused = error
                continue
            option = await self._unless_stopped(services.residency.place(self._wish(kind, demand, policy)))
            return option, launch_spec(self._holder, self._config, snapshot, self._artifact, demand, option)
        raise refused or EngineIncompatible(self._artifact.engine, no_device(policy))

    def _wish(self, kind: DeviceKind, demand: Demand, policy: Policy) -> Wish:
        """For residency, which asks again what is possible each time it looks at the machine."""
        owner = self._holder[:2]

        def claim(machine: Machine) -> Claim:
            taken = self._services.ledger.devices_of(owner)
            found = options(machine, kind, demand, policy, taken)
            if not found:
                raise self._none_left(machine, kind, taken)
            # Told to stop, it is out of the queue in a few turns of the loop: nobody may leave for it meanwhile.
            urgency = "unwanted" if self._stop.is_set() else self._owner.urgency
            return Claim(owner, found, spills(machine, kind, demand, policy, taken), urgency)

        patience_ms = self._config.queue_timeout_ms
        return Wish(
            self._holder,
            self._owner,
            claim,
            described(demand),
            self._waits,
            max(self._services.timings.readiness_s, patience_ms / 1000),
            patience_ms,
        )

    def _none_left(self, machine: Machine, kind: DeviceKind, taken: frozenset[int]) -> EngineIncompatible:
        config = self._config
        short = shortfall(machine, kind, config.replicas, config.tensor_parallel or 1, taken)
        return EngineIncompatible(self._artifact.engine, short or f"no {kind} devices are alike enough")

    async def _watch(self, process: EngineProcess, started: float) -> Event:
        """Readiness raced against exit and stop; what follows is ``_until_over``."""
        loop = asyncio.get_running_loop()
        try:
            await self._unless_stopped(process.wait_ready(self._services.timings.readiness_s))
        except _StopAsked:
            return await self._end(process)
        except EngineLaunchFailed as error:
            return await self._failed_start(process, error)
        ready_at = loop.time()
        self._services.ledger.loaded(self._holder)
        self.pid = process.pid
        self._launched("ready", ready_at - started)
        log.info(
            "launch_ready deployment=%s generation=%d replica=%d pid=%d seconds=%.1f",
            *self._holder,
            process.pid,
            ready_at - started,
        )
        self._report(EngineReady())
        return await self._until_over(process, ready_at)

    async def _until_over(self, process: EngineProcess, ready_at: float) -> Event:
        """Exit raced against stop and against health."""
        loop = asyncio.get_running_loop()
        name = self._holder[0]
        self._health = health = HealthWatch(name, process, self._services.timings.health, self._healthy)
        stop = loop.create_task(self._stop.wait())
        watching = self._services.background.spawn(health.run(), f"health {name}")
        try:
            await asyncio.wait((process.exited, stop, health.lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            watching.cancel()
        uptime_ms = int((loop.time() - ready_at) * 1000)
        if process.exited.done():
            return EngineExited(process.exited.result(), uptime_ms)
        if self._stop.is_set():
            return await self._end(process)
        verdict = ExitVerdict(ExitKind.UNRESPONSIVE, None, health.lost.result())
        log.error("%s: the engine (pid %d) is ended: %s", name, process.pid, verdict.detail)
        self._report(EngineUnresponsive(verdict, uptime_ms))
        # A hung engine does not hear TERM.
        return await self._end(process, grace_s=0)

    async def _failed_start(self, process: EngineProcess, error: EngineLaunchFailed) -> Event:
        if process.exited.done():
            verdict = process.exited.result()
        else:
            await self._end(process)
            verdict = ExitVerdict(ExitKind(error.verdict), None, error.detail)
        self.pid = process.pid
        self._launched(verdict.kind, None)
        return EngineExited(verdict, None, error)

    async def _end(self, process: EngineProcess, grace_s: float | None = None) -> Event:
        """Its memory stays booked until the process has really ended, however long that takes (field report 55)."""
        try:
            await process.stop(self._services.timings.stop_grace_s if grace_s is None else grace_s)
        except EngineStopFailed as error:
            log.error("%s: %s", self._holder[0], error)
            self.stop_failure = error
            await asyncio.wait((process.exited,))
        return EngineStopped()

    def _launched(self, outcome: str, seconds: float | None) -> None:
        self._services.metrics.launched(self._artifact.engine, self._artifact.model.id, outcome, seconds)

    @asynccontextmanager
    async def _leased(self) -> AsyncIterator[None]:
        """The store's lease, taken and given back in worker threads because it locks files."""
        lease = self._services.store.lease(self._artifact.digest)
        await asyncio.to_thread(lease.__enter__)
        try:
            yield
        finally:
            await asyncio.to_thread(lease.__exit__, None, None, None)

    async def _unless_stopped(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of ``work``, or _StopAsked with ``work`` cancelled."""
        loop = asyncio.get_running_loop()
        task, stop = loop.create_task(work), loop.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pending in (task, stop):
                pending.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)
        # Asked last, with no await behind it: who goes on from here must not have been told to stop.
        if self._stop.is_set():
            raise _StopAsked
        return task.result()
