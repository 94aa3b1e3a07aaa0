"""One generation of one deployment at work: feeds the lifecycle machine and carries out what it commands.

Everything here happens on the event loop and no step between an event and its commands awaits. A deployment with
several replicas will hold several machines and gates and choose between them in ``try_acquire``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.errors.modelhost import AdmissionRejected, NoReadyReplica, ResetRefused
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core import events, lifecycle
from sbproxy.modelhost.core.events import Event, StartCause, StopCause
from sbproxy.modelhost.core.jobs import JobId
from sbproxy.modelhost.core.lifecycle import Command, Generation
from sbproxy.modelhost.core.status import AdmissionReason, Availability, Priority
from sbproxy.modelhost.drain import Drain
from sbproxy.modelhost.engine_run import EngineRun
from sbproxy.modelhost.gate import Gate, HostPermit
from sbproxy.modelhost.journal import Journal
from sbproxy.modelhost.keep_alive import KeepAlive
from sbproxy.modelhost.services import Services

log = logging.getLogger(__name__)


class Deployment:
    """The supervisor. ``generation`` never changes; a changed configuration gets a new supervisor."""

    def __init__(
        self,
        deployment_id: str,
        generation: int,
        config: DeploymentConfig,
        artifact: ResolvedArtifact,
        services: Services,
    ) -> None:
        self.id = deployment_id
        self.generation = generation
        self.config = config
        self.artifact = artifact
        self.machine = Generation()
        self.journal = Journal(deployment_id, generation, services.jobs)
        self.resident_bytes: int | None = None
        self.suspended = False
        """True while a reload holds this generation down: requests are told that it drains."""
        self._services = services
        self._events: deque[Event] = deque()
        self._feeding = False
        self._rests = 0
        self._changed = asyncio.Event()
        self._starters: set[asyncio.Future[SbproxyError | None]] = set()
        self._drain: Drain | None = None
        self._for_operator = False
        self._deadline: asyncio.TimerHandle | None = None
        self._restart: asyncio.TimerHandle | None = None
        self.run: EngineRun | None = None
        self.gate = self._new_gate()
        self.keep_alive: KeepAlive | None = None

    # --- requests -----------------------------------------------------------------------------------------------------

    async def acquire(self, priority: Priority) -> HostPermit:
        """See ``ManagedModels.acquire``."""
        try:
            if self.machine.state != "ready":
                self._wake()
            return await self.gate.enter(priority)
        except AdmissionRejected as rejected:
            self._services.metrics.admission_rejected(self.id, priority, rejected.reason)
            raise

    def _wake(self) -> None:
        """Ask for the engine on behalf of a request, or say why not."""
        self.refuse_if_held()
        if self.config.cold_start in ("reject", "fallback"):
            raise NoReadyReplica(self.id)
        self.feed(events.StartRequested("request"))

    def refuse_if_held(self) -> None:
        """Raise AdmissionRejected when this generation may not be started now."""
        failure = self.machine.failure
        if self.machine.lost is not None:
            raise self._rejection("engine_unhealthy")
        if self.suspended or self.machine.state == "draining":
            raise self._rejection("draining")
        if self.machine.state == "failed" and failure is not None and failure.hold is not None:
            raise self._rejection(failure.hold)

    @property
    def availability(self) -> Availability:
        state = self.machine.state
        failure = self.machine.failure
        if state == "ready":
            return Availability("ready", 1, self.config.replicas)
        held = state == "failed" and failure is not None and failure.hold is not None
        down = held or self.suspended or state == "draining"
        return Availability("unavailable" if down else "cold", 0, self.config.replicas)

    # --- operators and reloads ----------------------------------------------------------------------------------------

    async def start(self, cause: StartCause, job: JobId | None = None) -> None:
        """Return when the engine is ready; raise what kept it from that. The load goes on if the caller leaves.

        ``job`` is the caller's own, if it has opened one for this start.
        """
        if self.suspended:
            # A reload may have taken its place since the caller looked it up: nobody would ever stop that engine.
            raise self._rejection("draining")
        if self.machine.state == "ready":
            return
        self._for_operator = True
        outcome: asyncio.Future[SbproxyError | None] = asyncio.get_running_loop().create_future()
        self._starters.add(outcome)
        try:
            self.feed(events.StartRequested(cause, job))
            error = await outcome
        finally:
            self._starters.discard(outcome)
        if error is not None:
            raise error

    async def stop(self, cause: StopCause, deadline_ms: int | None = None, job: JobId | None = None) -> Drain:
        """Drain and stop; return when the engine is gone. A stop under way is joined, its deadline only shortened.

        ``job`` is the caller's own, if it has opened one for this stop.
        """
        rests = self._rests
        self.feed(events.DrainRequested(cause, job))
        drain = self._drain or Drain()
        if self._deadline is not None and deadline_ms is not None:
            self._arm_deadline(deadline_ms)
        while self.machine.resident and self._rests == rests:
            await self._changed.wait()
        return drain

    def reset(self) -> None:
        """Clear a failure or a crash loop. Raises ResetRefused on a generation that runs."""
        if self.machine.resident:
            raise ResetRefused(self.id, self.machine.state)
        self.feed(events.ResetRequested())

    def adopt(self, services: Services) -> None:
        """A reload kept this generation: the host's new settings hold from its next start or drain."""
        self._services = services

    def engine_suspect(self, detail: str) -> None:
        """A request could not talk to the engine. A dead process is known by its exit, a live one is asked soon."""
        process = self.run.process if self.run else None
        if self.run is None or process is None or process.exited.done():
            return  # its end is being reported in this turn of the loop
        self.run.suspect()
        log.warning("%s: the engine (pid %d) runs but failed a request: %s", self.id, process.pid, detail)

    # --- the machine --------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Move the machine and carry out its commands. An event that arrives meanwhile waits for its turn."""
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                self._advance(self._events.popleft())
        finally:
            self._feeding = False

    def _advance(self, event: Event) -> None:
        before = self.machine
        self.machine, commands = lifecycle.step(before, event, self._services.timings.restarts)
        if self.machine.state == "draining" and before.state != "draining":
            self._drain = Drain(self.gate.active, self.gate.waiting)
        for command in commands:
            self._carry_out(command)
        if before.state != self.machine.state:
            self.journal.moved(before, event, self.machine, self._drain)
            if self.machine.state == "failed":
                restart = next(
                    (each.after_ms for each in commands if isinstance(each, lifecycle.ScheduleRestart)), None
                )
                self.journal.failed(self.machine, self.run.pid if self.run else None, restart)
        if before.resident and not self.machine.resident:
            self._rested()
        self._changed.set()
        self._changed = asyncio.Event()

    def _carry_out(self, command: Command) -> None:
        match command:
            case lifecycle.RejectWaiters(reason=reason, error=error):
                self._reject(reason, error)
            case lifecycle.ScheduleRestart(after_ms=after_ms):
                loop = asyncio.get_running_loop()
                self._restart = loop.call_later(after_ms / 1000, self.feed, events.RestartDue())
            case _:
                self._plain[type(command)](self)

    def _prepare(self) -> None:
        self._cancel_restart()
        self.run = EngineRun(self.id, self.generation, self.config, self.artifact, self._services, self.feed)
        self._services.background.spawn(self.run.prepare("runtime"), f"prepare {self.id}")

    def _launch(self) -> None:
        self._services.background.spawn(self._the_run.launch(), f"engine {self.id}")

    def _stop_run(self) -> None:
        self._cancel_deadline()
        self._the_run.stop()

    @property
    def _the_run(self) -> EngineRun:
        if self.run is None:
            raise RuntimeError(f"{self.id}: no run to command in state {self.machine.state}")
        return self.run

    def _admit(self) -> None:
        process = self._the_run.process
        if process is None:
            raise RuntimeError(f"{self.id}: ready without a process")
        for outcome in self._starters:
            if not outcome.done():
                outcome.set_result(None)
        self.gate.open(process.endpoint)

    def _reject(self, reason: AdmissionReason, error: SbproxyError | None) -> None:
        def refusal() -> SbproxyError:
            return error or self._rejection(reason)

        self.gate.reject(refusal)
        for outcome in self._starters:
            if not outcome.done():
                outcome.set_result(refusal())

    def _rejection(self, reason: AdmissionReason) -> AdmissionRejected:
        failure = self.machine.failure
        if reason == "draining":
            return AdmissionRejected(self.id, reason, "", retry_after_ms=self._services.config.shutdown_deadline_ms)
        detail = failure.detail if failure else ""
        if failure and failure.hold:
            detail = f"{detail}; correct the cause, then run: sbproxy models reset {self.id}"
        return AdmissionRejected(self.id, reason, detail)

    def _watch_idleness(self) -> None:
        seconds = self.config.keep_alive_secs
        if seconds is None:
            return
        self.keep_alive = KeepAlive(seconds, self.gate, self._unused)
        # "Unload as soon as idle" must not undo an operator's load before anybody could use it.
        if seconds > 0 or not self._for_operator:
            self.keep_alive.arm()

    def _unused(self) -> None:
        self.feed(events.DrainRequested("keep_alive"))

    def _await_permits(self) -> None:
        self.gate.close()
        if self.gate.active == 0:
            self.feed(events.PermitsReturned())
        else:
            self._arm_deadline(self._services.config.shutdown_deadline_ms)

    def _arm_deadline(self, after_ms: int) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + after_ms / 1000
        if self._deadline is not None:
            due = min(due, self._deadline.when())
            self._deadline.cancel()
        self._deadline = loop.call_at(due, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._deadline = None
        if self._drain is not None:
            self._drain.timed_out = True
        self.feed(events.DrainDeadlinePassed())

    def _gate_idle(self) -> None:
        if self.machine.state == "draining" and self._deadline is not None:
            self._cancel_deadline()
            self.feed(events.PermitsReturned())
        elif self.keep_alive is not None:
            self.keep_alive.idle()

    def _renew_gate(self) -> None:
        if self._drain is not None:
            self._drain.remaining_active += self.gate.active
        self.gate.revoke()
        self.gate = self._new_gate()

    def _new_gate(self) -> Gate:
        config = self.config
        return Gate(
            self.id,
            self.generation,
            max_active=config.concurrency,
            max_depth=config.max_queue_depth,
            queue_timeout_s=config.queue_timeout_ms / 1000,
            cold_timeout_s=self._services.timings.readiness_s,
            on_idle=self._gate_idle,
            suspect=self.engine_suspect,
        )

    def _rested(self) -> None:
        """Nothing of an engine is left: forget what belonged to it."""
        self._rests += 1
        self.run = None
        self._drain = None
        self.resident_bytes = None
        self._for_operator = False
        self._cancel_deadline()
        if self.keep_alive is not None:
            self.keep_alive.disarm()
            self.keep_alive = None

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_restart(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None

    _plain: dict[type[Command], Callable[[Deployment], None]] = {
        lifecycle.PrepareArtifact: _prepare,
        lifecycle.LaunchEngine: _launch,
        lifecycle.CancelPreparation: _stop_run,
        lifecycle.AdmitWaiters: _admit,
        lifecycle.RevokePermits: _renew_gate,
        lifecycle.ArmKeepAlive: _watch_idleness,
        lifecycle.AwaitPermits: _await_permits,
        lifecycle.StopEngine: _stop_run,
        lifecycle.CancelRestart: _cancel_restart,
    }
