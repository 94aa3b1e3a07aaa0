"""The model host: one facade over deployments, lifecycle operations as jobs, reloads, and what status shows.

Implements the gateway's ``ManagedModels``. Admin-managed desired state will feed the same ``prepare``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from sbproxy.artifacts.core.model import PullIntent
from sbproxy.catalog.core.model import ArtifactDigest, Catalog, PullPolicy, ResolvedArtifact
from sbproxy.config.core.model_host import ModelHostConfig
from sbproxy.errors.modelhost import AdmissionRejected, UnknownDeployment
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.background import Background
from sbproxy.modelhost.candidate import prepare_candidate
from sbproxy.modelhost.core.jobs import ENDED_EARLY, JobId, JobKind, StopKind
from sbproxy.modelhost.core.status import Availability, Priority, ReplicaState, StatusRow
from sbproxy.modelhost.deployment import Deployment, Superseded
from sbproxy.modelhost.engine_supply import EngineSupply
from sbproxy.modelhost.gate import HostPermit
from sbproxy.modelhost.job_desk import Job, JobDesk
from sbproxy.modelhost.ledger import ReservationLedger
from sbproxy.modelhost.ports import ArtifactStore, DeviceInventory, EngineDrivers, HostMetrics, JobStore
from sbproxy.modelhost.pulls import PullDesk
from sbproxy.modelhost.reload import Prepared
from sbproxy.modelhost.residency import Residency
from sbproxy.modelhost.roster import Roster
from sbproxy.modelhost.services import Services, Timings, house_of
from sbproxy.modelhost.status_rows import measure, status_row
from sbproxy.near import near_names

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResetOutcome:
    """The synchronous answer of a reset (contracts section 0, row 2)."""

    deployment: str
    state: ReplicaState
    job_id: JobId


class ModelHost:
    """Owns every engine process of this daemon. Everything runs on one event loop; nothing serves before a commit.

    ``config`` and ``catalog`` are the foundation that the first candidate is compared with; deployments appear only
    through ``prepare`` and ``commit``, at boot as on reload.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        config: ModelHostConfig,
        store: ArtifactStore,
        drivers: EngineDrivers,
        devices: DeviceInventory,
        jobs: JobStore,
        metrics: HostMetrics,
        clock: Callable[[], float] = time.time,
        timings: Timings | None = None,
    ) -> None:
        self.jobs = JobDesk(jobs, clock)
        background = Background()
        residency = Residency(ReservationLedger(), devices, metrics, background, house=house_of(config))
        services = Services(
            config=config,
            store=store,
            drivers=drivers,
            devices=devices,
            jobs=self.jobs,
            pulls=PullDesk(self.jobs, metrics),
            supply=EngineSupply(self.jobs),
            metrics=metrics,
            clock=clock,
            timings=timings or Timings(),
            residency=residency,
            background=background,
        )
        self._roster = Roster(catalog, services)
        self._changing = asyncio.Lock()
        self._availability: dict[str, str] = {}

    # --- requests -----------------------------------------------------------------------------------------------------

    def try_acquire(self, deployment: str) -> HostPermit | None:
        """See ``ManagedModels``. A few attribute checks; about a microsecond."""
        found = self._roster.deployments.get(deployment)
        return None if found is None else found.gate.try_enter()

    async def acquire(self, deployment: str, priority: Priority) -> HostPermit:
        """See ``ManagedModels``. Waiting for a cold start is bounded by the longer of the queue time-out and the
        readiness deadline; the queue time-out itself runs only while the engine is ready."""
        while True:
            with contextlib.suppress(Superseded):
                return await self._find(deployment).acquire(priority)

    def availability(self, deployment: str) -> Availability:
        """Raises UnknownDeployment."""
        return self._find(deployment).availability

    # --- lifecycle operations -----------------------------------------------------------------------------------------

    async def load(self, deployment: str) -> JobId:
        """Start in the background. Raises UnknownDeployment, or AdmissionRejected when it is held or drains."""
        if not self._roster.changes(deployment):
            self._find(deployment).refuse_if_held()

        async def work(target: Deployment, job: JobId) -> None:
            await target.start("load", job)

        return await self._in_background("load", deployment, work)

    async def stop(self, deployment: str, kind: StopKind = "stop") -> JobId:
        """Drain and stop in the background; a later request starts it again. Drain and evict are other names for it,
        which only the job's ``kind`` tells. When answers had to be cut, the job's note says so."""

        async def work(target: Deployment, job: JobId) -> str | None:
            return (await target.stop("operator", job=job)).note

        return await self._in_background(kind, deployment, work)

    async def reset(self, deployment: str) -> ResetOutcome:
        """Clear a failure at once. Raises UnknownDeployment or ResetRefused."""
        await self._roster.settled(deployment)
        target = self._find(deployment)
        state = target.reset()
        job = await self.jobs.open("reset", target.id)
        target.note_job(job.id)
        job.finish()
        return ResetOutcome(deployment, state, job.id)

    async def pull(self, artifact: ResolvedArtifact, intent: PullIntent = "explicit") -> JobId:
        """Bring an artifact into the cache in the background; ``explicit`` overrides a manual policy."""
        services = self._roster.services
        policy: PullPolicy = artifact.model.pull
        job = await self.jobs.open("pull", artifact.subject)
        services.pulls.begin(services.store, artifact, intent, policy, job)
        return job.id

    # --- desired state ------------------------------------------------------------------------------------------------

    async def prepare(
        self,
        catalog: Catalog,
        config: ModelHostConfig,
        *,
        store: ArtifactStore | None = None,
        drivers: EngineDrivers | None = None,
    ) -> Prepared:
        """Make a candidate ready to commit, and publish nothing. A second candidate waits for the first to end.

        A changed foundation brings its own ``store`` and ``drivers``. Raises what ``prepare_candidate`` raises.
        """
        await self._changing.acquire()
        try:
            now = self._roster.services
            services = replace(now, config=config, store=store or now.store, drivers=drivers or now.drivers)
            candidate = await prepare_candidate(self._roster, catalog, services)
            await self._ask_drivers(services.drivers)
        except BaseException:
            self._candidate_ended()
            raise
        return Prepared(self._roster, candidate, self._candidate_ended)

    def _candidate_ended(self) -> None:
        self._roster.unstage()
        self._changing.release()

    async def close(self, deadline_s: float | None = None) -> None:
        """Drain everything within ``deadline_s`` seconds (default: shutdown_deadline_ms), then stop all engines.

        No candidate may be between its commit and its end. Bounded: an engine that survives SIGKILL is left behind
        (its ownership record stays for the next start) after the deadline, twice the grace and ten seconds.
        """
        self._roster.closed = True
        services = self._roster.services
        deadline_ms = services.config.shutdown_deadline_ms if deadline_s is None else int(deadline_s * 1000)
        for deployment in self._roster:
            deployment.suspended = True
            services.background.spawn(_shut_down(deployment, deadline_ms), f"shut down {deployment.id}")
        await services.pulls.close()
        await services.background.join(deadline_ms / 1000 + 2 * services.timings.stop_grace_s + 10)
        await self.jobs.close()

    # --- what others see ----------------------------------------------------------------------------------------------

    @property
    def runtime_revision(self) -> int:
        """Commits so far; 0 before the first."""
        return self._roster.revision

    @property
    def catalog(self) -> Catalog:
        return self._roster.catalog

    @property
    def config(self) -> ModelHostConfig:
        return self._roster.services.config

    def status(self) -> list[StatusRow]:
        """One row a replica, generations that still drain included. ``refresh`` measures what is measured."""
        services = self._roster.services
        now_ms = int(services.clock() * 1000)
        return [
            status_row(each, replica, services.ledger, self._availability.get(each.artifact.engine, "blocked"), now_ms)
            for each in self._roster
            for replica in each.replicas
        ]

    async def refresh(self) -> None:
        """Measure engine memory and ask the drivers for their availability, in worker threads."""
        await self._ask_drivers(self._roster.services.drivers)
        await measure(list(self._roster))

    def resident_digests(self) -> frozenset[ArtifactDigest]:
        """Artifacts that an engine uses or is about to use."""
        return frozenset(each.artifact.digest for each in self._roster.resident)

    def configured_digests(self) -> frozenset[ArtifactDigest]:
        """Artifacts that the published desired state names."""
        return frozenset(each.artifact.digest for each in self._roster.deployments.values())

    # --- inside -------------------------------------------------------------------------------------------------------

    def _find(self, deployment: str) -> Deployment:
        found = self._roster.deployments.get(deployment)
        if found is None:
            raise UnknownDeployment(deployment, near_names(deployment, self._roster.deployments))
        return found

    async def _ask_drivers(self, drivers: EngineDrivers) -> None:
        asked = await asyncio.to_thread(lambda: {name: each.availability().state for name, each in drivers.items()})
        self._availability = dict(asked)

    async def _in_background(
        self, kind: JobKind, deployment: str, work: Callable[[Deployment, JobId], Awaitable[str | None]]
    ) -> JobId:
        """Do ``work`` on the generation that is the deployment once no commit is about to replace it."""
        if not self._roster.changes(deployment):
            self._find(deployment)
        job = await self.jobs.open(kind, deployment)

        target: Deployment | None = None

        async def run() -> None:
            nonlocal target
            job.run()
            try:
                await self._roster.settled(deployment)
                # No await between here and what the work does first: a reload may retire what was found before one.
                target = self._find(deployment)
                target.note_job(job.id)
                note = await work(target, job.id)
            except SbproxyError as error:
                reason = error.reason if isinstance(error, AdmissionRejected) else error.code
                log.error("%s of %s failed: %s", kind, deployment, error)
                job.fail(f"{kind} failed ({reason}); inspect server logs", reason)
            except asyncio.CancelledError:
                if not job.cancel_asked:
                    raise
                # Whoever else wants the engine goes on waiting for it.
                if target is not None:
                    target.forgo()
                job.fail(f"{kind} was cancelled", ENDED_EARLY)
            else:
                job.finish(note=note)

        working = self._roster.services.background.spawn(run(), f"{kind} {deployment}")
        if kind == "load":
            job.on_cancel(lambda: _call_off(working, job))
        return job.id


def _call_off(task: asyncio.Task[None], job: Job) -> None:
    task.cancel()
    if job.record.state == "queued":
        # A task that has not begun never does.
        job.fail("load was cancelled", ENDED_EARLY)


async def _shut_down(deployment: Deployment, deadline_ms: int) -> None:
    await deployment.stop("shutdown", deadline_ms)
