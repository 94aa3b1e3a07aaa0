"""One replica of one generation at work: feeds the lifecycle machine and carries out what it commands.

Everything here happens on the event loop and no step between an event and its commands awaits. Who may use the engine
is the gate's, and what several replicas are together is the deployment's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core import events, lifecycle
from sbproxy.modelhost.core.events import Event
from sbproxy.modelhost.core.lifecycle import Command, Generation
from sbproxy.modelhost.core.status import AdmissionReason
from sbproxy.modelhost.drain import Drain
from sbproxy.modelhost.engine_run import EngineRun
from sbproxy.modelhost.gate import Gate, Place
from sbproxy.modelhost.journal import Journal
from sbproxy.modelhost.ledger import Resident
from sbproxy.modelhost.services import Services

log = logging.getLogger(__name__)

Cause = Callable[[], str]


class Owner(Resident, Protocol):
    """What a replica needs of its deployment."""

    id: str
    generation: int
    config: DeploymentConfig
    artifact: ResolvedArtifact
    gate: Gate

    @property
    def services(self) -> Services: ...

    def forgo(self) -> str | None:
        """See ``Deployment.forgo``."""
        ...

    def replica_ready(self) -> None: ...

    def replica_refuses(self, replica: Replica, reason: AdmissionReason, error: SbproxyError | None) -> None:
        """This replica will not serve those who wait."""
        ...

    def replica_rested(self, replica: Replica) -> None:
        """Nothing of its engine is left."""
        ...

    def room_wanted(self, replica: Replica) -> None:
        """It waits for room on the machine, or does no longer."""
        ...


class Replica:
    """The supervisor of one engine. Its generation never changes."""

    def __init__(self, index: int, owner: Owner) -> None:
        self.index = index
        self.machine = Generation()
        self.journal = Journal(owner.id, owner.generation, index, owner.services.jobs, owner.forgo)
        self.resident_bytes: int | None = None
        self.run: EngineRun | None = None
        self.waits_for_room: Cause | None = None
        self.rests = 0
        self.changed = asyncio.Event()
        self.drain: Drain | None = None
        self._owner = owner
        self._events: deque[Event] = deque()
        self._feeding = False
        self._place: Place | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._restart: asyncio.TimerHandle | None = None

    @property
    def active(self) -> int:
        return self._place.active if self._place else 0

    def suspect(self, detail: str) -> None:
        """A request could not talk to the engine. A dead process is known by its exit, a live one is asked soon."""
        process = self.run.process if self.run else None
        if self.run is None or process is None or process.exited.done():
            return  # its end is being reported in this turn of the loop
        self.run.suspect()
        log.warning("%s: the engine (pid %d) runs but failed a request: %s", self._owner.id, process.pid, detail)

    async def at_rest(self, rests: int) -> None:
        """Return when nothing of the engine is left that ran when ``rests`` was read."""
        while self.machine.resident and self.rests == rests:
            await self.changed.wait()

    def hasten(self, deadline_ms: int) -> None:
        """Shorten the deadline of a drain that runs."""
        if self._deadline is not None:
            self._arm_deadline(deadline_ms)

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
        self.machine, commands = lifecycle.step(before, event, self._owner.services.timings.restarts)
        if self.machine.state == "draining" and before.state != "draining":
            self.drain = Drain(self.active, self._owner.gate.waiting)
        for command in commands:
            self._carry_out(command)
        if before.state != self.machine.state:
            self.journal.moved(before, event, self.machine, self.drain)
            if self.machine.state == "failed":
                restart = next(
                    (each.after_ms for each in commands if isinstance(each, lifecycle.ScheduleRestart)), None
                )
                self.journal.failed(self.machine, self.run.pid if self.run else None, restart)
        if before.resident and not self.machine.resident:
            self._rested()
        self.changed.set()
        self.changed = asyncio.Event()

    def _carry_out(self, command: Command) -> None:
        match command:
            case lifecycle.RejectWaiters(reason=reason, error=error):
                self._owner.replica_refuses(self, reason, error)
            case lifecycle.ScheduleRestart(after_ms=after_ms):
                loop = asyncio.get_running_loop()
                self._restart = loop.call_later(after_ms / 1000, self.feed, events.RestartDue())
            case _:
                self._plain[type(command)](self)

    def _prepare(self) -> None:
        self._cancel_restart()
        self.run = EngineRun(
            self._owner, self.index, self._owner.services, self.feed, self._wait_for_room, self._healthy
        )
        self._spawn(self.run.prepare("runtime"), "prepare")

    def _launch(self) -> None:
        self._spawn(self._the_run.launch(), "engine")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._owner.services.background.spawn(work, f"{name} {self._owner.id}")

    def _wait_for_room(self, cause: Cause | None) -> None:
        changed = (cause is None) != (self.waits_for_room is None)
        self.waits_for_room = cause
        if changed:
            self._owner.room_wanted(self)

    def _healthy(self) -> None:
        if self._place is not None:
            self._place.trust()

    def _stop_run(self) -> None:
        self._cancel_deadline()
        self._the_run.stop()

    @property
    def _the_run(self) -> EngineRun:
        if self.run is None:
            raise RuntimeError(f"{self._owner.id}: no run to command in state {self.machine.state}")
        return self.run

    def _admit(self) -> None:
        process = self._the_run.process
        if process is None:
            raise RuntimeError(f"{self._owner.id}: ready without a process")
        self._place = self._owner.gate.open(process.endpoint, self.suspect, self._idle)

    def _ready(self) -> None:
        self._owner.replica_ready()

    def _await_permits(self) -> None:
        if self._place is not None:
            self._owner.gate.close(self._place)
        if self.active == 0:
            self.feed(events.PermitsReturned())
        else:
            self._arm_deadline(self._owner.services.config.shutdown_deadline_ms)

    def _idle(self) -> None:
        if self.machine.state == "draining" and self._deadline is not None:
            self._cancel_deadline()
            self.feed(events.PermitsReturned())

    def _revoke(self) -> None:
        if self._place is None:
            return
        if self.drain is not None:
            self.drain.remaining_active += self._place.active
        self._owner.gate.remove(self._place)
        self._place = None

    def _rested(self) -> None:
        """Forget what belonged to the engine that is gone."""
        self.rests += 1
        self.run = None
        self.drain = None
        self.resident_bytes = None
        self._wait_for_room(None)
        self._cancel_deadline()
        self._owner.replica_rested(self)

    def _arm_deadline(self, after_ms: int) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + after_ms / 1000
        if self._deadline is not None:
            due = min(due, self._deadline.when())
            self._deadline.cancel()
        self._deadline = loop.call_at(due, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._deadline = None
        if self.drain is not None:
            self.drain.timed_out = True
        self.feed(events.DrainDeadlinePassed())

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_restart(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None

    _plain: dict[type[Command], Callable[[Replica], None]] = {
        lifecycle.PrepareArtifact: _prepare,
        lifecycle.LaunchEngine: _launch,
        lifecycle.CancelPreparation: _stop_run,
        lifecycle.AdmitWaiters: _admit,
        lifecycle.RevokePermits: _revoke,
        lifecycle.ArmKeepAlive: _ready,
        lifecycle.AwaitPermits: _await_permits,
        lifecycle.StopEngine: _stop_run,
        lifecycle.CancelRestart: _cancel_restart,
    }
