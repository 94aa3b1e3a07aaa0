"""What people can read later about one replica: a log line a transition, a durable job a start and a drain.

An operator's own job stands for the transition that it asks for; all others get one here. Moves nothing itself.
"""

from __future__ import annotations

import logging

from sbproxy.modelhost.core.events import DrainRequested, Event, StartRequested, cause_of
from sbproxy.modelhost.core.jobs import ENDED_EARLY, TERMINAL, JobId, JobKind
from sbproxy.modelhost.core.lifecycle import Generation
from sbproxy.modelhost.drain import Drain
from sbproxy.modelhost.job_desk import Job, JobDesk, Withdraw

log = logging.getLogger(__name__)


class Journal:
    """``job_id`` is the job of the latest transition or operation, ours or an operator's. ``withdraw`` takes a start
    back, where its own job is cancelled."""

    def __init__(self, deployment: str, generation: int, replica: int, jobs: JobDesk, withdraw: Withdraw) -> None:
        self._deployment = deployment
        self._generation = generation
        self._replica = replica
        self._jobs = jobs
        self._withdraw = withdraw
        self._job: Job | None = None
        self.job_id: JobId | None = None

    def moved(self, before: Generation, event: Event, after: Generation, drain: Drain | None) -> None:
        """Called once a transition is carried out. ``drain`` is the one that it belongs to."""
        cause = cause_of(event)
        log.info("%s generation %d replica %d: %s -> %s cause=%s", *self._name, before.state, after.state, cause)
        if before.state == "draining" and drain is not None:
            log.info("%s generation %d replica %d drained cause=%s %s", *self._name, before.stop_cause, drain)
        self._settle(after, drain)
        if after.state == "assigned":
            self._open("launch", event.job if isinstance(event, StartRequested) else None)
        # A preparation that is given up is the end of its own job, and at shutdown nobody is left to ask for one.
        elif before.state == "ready" and isinstance(event, DrainRequested) and event.cause != "shutdown":
            self._open("drain", event.job)

    def note_job(self, job: JobId) -> None:
        """A job that works for this generation before it starts: the pull of its artifact."""
        self.job_id = job

    def failed(self, now: Generation, pid: int | None, restart_ms: int | None) -> None:
        """Called when a generation failed. ``restart_ms`` is when it is tried again by itself, if it is."""
        failure = now.failure
        if failure is None:
            return
        what = "nothing restarts it by itself" if restart_ms is None else f"restart in {restart_ms} ms"
        hold = f" held={failure.hold}" if failure.hold else ""
        log.warning(
            "engine_failed deployment=%s generation=%d replica=%d pid=%s reason=%s%s: %s; %s",
            *self._name,
            pid,
            failure.reason_code,
            hold,
            failure.detail,
            what,
        )

    @property
    def _name(self) -> tuple[str, int, int]:
        return self._deployment, self._generation, self._replica

    def _open(self, kind: JobKind, operators: JobId | None) -> None:
        if operators is not None:
            self.job_id = operators
            return
        self._job = self._jobs.begin(kind, self._deployment)
        self._job.run()
        if kind == "launch":
            self._job.on_cancel(self._withdraw)
        self.job_id = self._job.id

    def _settle(self, after: Generation, drain: Drain | None) -> None:
        """End our own job where this transition is the end of it."""
        job = self._job
        if job is None or after.state == "preparing":
            return
        self._job = None
        if job.record.state in TERMINAL:
            return  # the desk has closed
        if job.record.kind == "drain" or after.state == "ready":
            job.finish(note=drain.note if drain is not None else None)
        elif job.cancel_asked:
            job.fail("launch was cancelled", ENDED_EARLY)
        else:
            reason = after.failure.reason_code if after.state == "failed" and after.failure else "draining"
            job.fail(f"launch failed ({reason}); inspect server logs", reason)
