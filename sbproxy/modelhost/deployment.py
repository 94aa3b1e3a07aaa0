"""One generation of one deployment: its replicas behind one gate, and what they are together to requests, operators,
reloads and to those that want its room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.errors.modelhost import AdmissionRejected, NoReadyReplica, ResetRefused
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core import events
from sbproxy.modelhost.core.admission import AdmissionQueue
from sbproxy.modelhost.core.events import StartCause, StopCause
from sbproxy.modelhost.core.jobs import JobId
from sbproxy.modelhost.core.residency import Standing, Urgency
from sbproxy.modelhost.core.status import AdmissionReason, Availability, Priority, ReplicaState
from sbproxy.modelhost.drain import Drain
from sbproxy.modelhost.gate import Gate, HostPermit, Patience
from sbproxy.modelhost.keep_alive import KeepAlive
from sbproxy.modelhost.replica import Replica
from sbproxy.modelhost.services import Services

_RETRY_FAILED_S = 5.0
"""How often queued requests may try a replica again that failed beside ready ones."""


class Superseded(Exception):
    """A newer generation of the deployment has taken over: ask that one."""


class Deployment:
    """``generation`` never changes; a changed configuration gets a new supervisor."""

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
        self.services = services
        self.suspended = False
        """True while a reload holds this generation down: requests are told that it drains."""
        queue_s = config.queue_timeout_ms / 1000
        patience = Patience(queue_s, max(queue_s, services.timings.readiness_s))
        self._patience = patience
        self.gate = Gate(
            self.id,
            generation,
            AdmissionQueue(config.concurrency, config.max_queue_depth, config.concurrency * config.replicas),
            patience,
            on_idle=self._gate_idle,
            on_forsaken=self._forsaken,
        )
        self.keep_alive: KeepAlive | None = None
        self._superseded = False
        self._for_operator = False
        self._starters: set[asyncio.Future[SbproxyError | None]] = set()
        self._retried_at = float("-inf")
        self._loop = asyncio.get_running_loop()
        self.replicas = tuple(Replica(index, self) for index in range(config.replicas))

    # --- requests -----------------------------------------------------------------------------------------------------

    async def acquire(self, priority: Priority) -> HostPermit:
        """See ``ManagedModels.acquire``. Raises Superseded, also to those who wait, once a newer generation serves."""
        if self._superseded:
            raise Superseded
        try:
            if not self.gate.is_open:
                self._wake()
            else:
                self._retry_failed()
            return await self.gate.enter(priority)
        except AdmissionRejected as rejected:
            self.services.metrics.admission_rejected(self.id, priority, rejected.reason)
            raise

    def _wake(self) -> None:
        """Ask for the engines on behalf of a request, or say why not."""
        if self.config.cold_start == "fallback":
            # Whatever keeps it from serving: the next provider answers.
            raise NoReadyReplica(self.id, fallback=True)
        self.refuse_if_held()
        if self.config.cold_start == "reject":
            raise NoReadyReplica(self.id)
        for replica in self.replicas:
            if self._held(replica) is None:
                replica.feed(events.StartRequested("request"))

    def _retry_failed(self) -> None:
        """Requests queue although an engine is ready: the others that failed or were stopped get another try."""
        if self.ready == len(self.replicas) or self._loop.time() - self._retried_at < _RETRY_FAILED_S:
            return
        self._retried_at = self._loop.time()
        for replica in self.replicas:
            if not replica.machine.resident and self._held(replica) is None and not self.suspended:
                replica.feed(events.StartRequested("request"))

    def refuse_if_held(self) -> None:
        """Raise AdmissionRejected when no replica may be started now."""
        if self.suspended:
            raise self._rejection(self.replicas[0], "draining")
        held = [(replica, self._held(replica)) for replica in self.replicas]
        for replica, reason in held:
            if reason is not None and all(why is not None for _, why in held):
                raise self._rejection(replica, reason)

    def _held(self, replica: Replica) -> AdmissionReason | None:
        machine = replica.machine
        if machine.lost is not None:
            return "engine_unhealthy"
        if machine.state == "draining" and not machine.gentle:
            return "draining"
        if machine.state == "failed" and machine.failure is not None:
            return machine.failure.hold
        return None

    @property
    def availability(self) -> Availability:
        if self.ready:
            return Availability("ready", self.ready, self.config.replicas)
        down = self.suspended or all(self._held(replica) is not None for replica in self.replicas)
        draining = any(replica.machine.state == "draining" for replica in self.replicas)
        return Availability("unavailable" if down or draining else "cold", 0, self.config.replicas)

    # --- what the replicas are together -------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return sum(replica.machine.state == "ready" for replica in self.replicas)

    @property
    def resident(self) -> bool:
        """An engine of this generation runs, starts or stops."""
        return any(replica.machine.resident for replica in self.replicas)

    @property
    def serving(self) -> bool:
        """An engine of this generation runs or starts, and does not stop."""
        return any(state in ("assigned", "preparing", "ready") for state in self._states)

    @property
    def failed(self) -> bool:
        """No engine of this generation runs, and one has failed."""
        return not self.resident and "failed" in self._states

    @property
    def _states(self) -> Iterator[ReplicaState]:
        return (replica.machine.state for replica in self.replicas)

    def cached(self) -> None:
        """The artifact is in the cache, and verified."""
        for replica in self.replicas:
            if replica.machine.state == "configured":
                replica.feed(events.ArtifactVerified())

    def note_job(self, job: JobId) -> None:
        """A job that works for this generation."""
        for replica in self.replicas:
            replica.journal.note_job(job)

    # --- operators and reloads ----------------------------------------------------------------------------------------

    async def start(self, cause: StartCause, job: JobId | None = None) -> None:
        """Return when all engines are ready; raise what kept one from that. The load goes on if the caller leaves.

        ``job`` is the caller's own, if it has opened one for this start.
        """
        if self.suspended:
            # A reload may have taken its place since the caller looked it up: nobody would ever stop that engine.
            raise self._rejection(self.replicas[0], "draining")
        if self.ready == len(self.replicas):
            return
        self._for_operator = True
        outcome: asyncio.Future[SbproxyError | None] = self._loop.create_future()
        self._starters.add(outcome)
        try:
            for replica in self.replicas:
                replica.feed(events.StartRequested(cause, job))
            error = await outcome
        finally:
            self._starters.discard(outcome)
            self.services.residency.standing_changed()
        if error is not None:
            raise error

    def forgo(self) -> str | None:
        """End the engines that start, for an operator who takes the wish back; or return who else waits for them."""
        if self._starters:
            return "an operator's load or a reload waits for the same start"
        if self.gate.waiting:
            return f"requests wait for the same start ({self.gate.waiting}); stop the deployment to turn them away"
        self._for_operator = False
        for replica in self.replicas:
            if replica.machine.state in ("assigned", "preparing"):
                replica.feed(events.DrainRequested("abandoned"))
        return None

    async def stop(self, cause: StopCause, deadline_ms: int | None = None, job: JobId | None = None) -> Drain:
        """Drain and stop; return when the engines are gone. A stop under way is joined, its deadline only shortened.

        ``job`` is the caller's own, if it has opened one for this stop.
        """
        drains: list[Drain] = []
        ending: list[Coroutine[None, None, None]] = []
        for replica in self.replicas:
            seen = replica.rests
            replica.feed(events.DrainRequested(cause, job))
            if replica.drain is not None:
                drains.append(replica.drain)
            if deadline_ms is not None:
                replica.hasten(deadline_ms)
            # Asked now: what is started again while we wait for others is not ours to wait for.
            if replica.machine.resident:
                ending.append(replica.at_rest(seen))
        await asyncio.gather(*ending)
        return Drain.of_all(drains)

    def reset(self) -> ReplicaState:
        """Clear a failure or a crash loop; returns the state that this leaves. Raises ResetRefused on a generation
        that runs and of which no replica has failed."""
        failed = [replica for replica in self.replicas if replica.machine.state == "failed"]
        if not failed and self.resident:
            state = next(replica.machine.state for replica in self.replicas if replica.machine.resident)
            raise ResetRefused(self.id, state)
        targets = failed or list(self.replicas)
        for replica in targets:
            replica.feed(events.ResetRequested())
        return targets[0].machine.state

    def supersede(self) -> None:
        """A newer generation serves: whoever still waits here goes over to it."""
        self._superseded = True
        self.gate.reject(Superseded)

    def adopt(self, services: Services) -> None:
        """A reload kept this generation: the host's new settings hold from its next start or drain."""
        self.services = services

    # --- room for others ----------------------------------------------------------------------------------------------

    @property
    def standing(self) -> Standing:
        """Of the replicas that hold something. One that waits for room does not protect what the others have: two
        deployments would wait for each other for ever."""
        ledger = self.services.ledger
        holding = [each for each in self.replicas if ledger.held_by((self.id, self.generation, each.index))]
        states = {each.machine.state for each in holding}
        if states == {"draining"}:
            return "leaving"
        if self.config.pinned:
            return "fixed"
        starting = bool(self._starters) and len(holding) == len(self.replicas)
        return "busy" if self.gate.busy or starting or states != {"ready"} else "idle"

    @property
    def urgency(self) -> Urgency:
        if self._starters or self._for_operator or self.config.pinned:
            return "due"
        if self.services.ledger.holds((self.id, self.generation)):
            return "spare"
        return "due" if self.gate.waiting else "unwanted"

    @property
    def last_used(self) -> float:
        idle_since = self.gate.idle_since
        return self._loop.time() if self.gate.busy or idle_since is None else idle_since

    def evict(self) -> None:
        for replica in self.replicas:
            replica.feed(events.DrainRequested("capacity"))

    def yield_room(self) -> None:
        self.gate.hold()

    def keep_room(self) -> None:
        self.gate.resume()

    # --- what replicas report -----------------------------------------------------------------------------------------

    def replica_ready(self) -> None:
        if self.ready == len(self.replicas):
            self._settle_starters(None)
        self._watch_idleness()
        if self.ready == len(self.replicas):
            self._for_operator = False
        self.services.residency.standing_changed()

    def replica_refuses(self, replica: Replica, reason: AdmissionReason, error: SbproxyError | None) -> None:
        refused = error or self._rejection(replica, reason)
        self._settle_starters(refused)
        if not any(other.machine.hopeful for other in self.replicas if other is not replica):
            self.gate.reject(lambda: error or self._rejection(replica, reason))

    def replica_rested(self, replica: Replica) -> None:
        if self.resident:
            return
        self._for_operator = False
        if self.keep_alive is not None:
            self.keep_alive.disarm()
            self.keep_alive = None
        self.gate.resume()
        if replica.machine.state == "stopped" and (self.gate.waiting or self._starters):
            self._wake_again()

    def _wake_again(self) -> None:
        """It was stopped although somebody wanted it meanwhile."""
        try:
            if self._starters:
                for replica in self.replicas:
                    replica.feed(events.StartRequested("load"))
            else:
                self._wake()
        except SbproxyError as refused:
            error = refused
            self.gate.reject(lambda: error)

    def room_wanted(self, replica: Replica) -> None:
        """While room is waited for, callers wait as long as for a place; once an engine starts, as for a start. What
        nobody waits for any more gives up instead."""
        if replica.waits_for_room is not None and self.urgency == "unwanted":
            replica.feed(events.DrainRequested("abandoned"))
        elif not self.gate.is_open:
            starts = self.services.ledger.holds((self.id, self.generation))
            cause = None if starts else replica.waits_for_room
            self.gate.bound(self._patience.queue_s if cause else self._patience.cold_s, cause)

    def _forsaken(self) -> None:
        """Nobody waits any more: what has no room yet is not started. A start at work goes on (field report 12)."""
        if self.gate.is_open:
            if not self.gate.busy:
                self._gate_idle()
        elif not (self._starters or self._for_operator or self.config.pinned):
            for replica in self.replicas:
                if replica.waits_for_room is not None:
                    replica.feed(events.DrainRequested("abandoned"))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _settle_starters(self, error: SbproxyError | None) -> None:
        for outcome in self._starters:
            if not outcome.done():
                outcome.set_result(error)

    def _rejection(self, replica: Replica, reason: AdmissionReason) -> AdmissionRejected:
        failure = replica.machine.failure
        if reason == "draining":
            return AdmissionRejected(self.id, reason, "", retry_after_ms=self.services.config.shutdown_deadline_ms)
        detail = failure.detail if failure else ""
        if failure and failure.hold:
            detail = f"{detail}; correct the cause, then run: sbproxy models reset {self.id}"
        return AdmissionRejected(self.id, reason, detail)

    def _watch_idleness(self) -> None:
        seconds = self.config.keep_alive_secs
        if seconds is None:
            return
        if self.keep_alive is None:
            self.keep_alive = KeepAlive(seconds, self.gate, self._unused)
        # "Unload as soon as idle" must not undo an operator's load before anybody could use it.
        if seconds > 0 or not self._for_operator:
            self.keep_alive.arm()

    def _unused(self) -> None:
        for replica in self.replicas:
            replica.feed(events.DrainRequested("keep_alive"))

    def _gate_idle(self) -> None:
        if self.keep_alive is not None:
            self.keep_alive.idle()
        self.services.residency.standing_changed()
