"""Pulls artifacts one after the other as durable jobs, with progress, and keeps the parts when it is cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

from sbproxy.artifacts.core.model import PullProgress, Ready, Snapshot
from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.errors import SbproxyError
from sbproxy.errors.cli import PullsFailed
from sbproxy.modelhost.core.jobs import JobProgress
from sbproxy.modelhost.job_desk import Job, JobDesk
from sbproxy.modelhost.job_store import SqliteJobStore
from sbproxy_cli import diagnostics
from sbproxy_cli.local import Local
from sbproxy_cli.progress import TransferProgress


@dataclass(frozen=True, slots=True)
class Pulled:
    """One finished pull; ``job_id`` is None where the cache already had it and nothing changed."""

    artifact: ResolvedArtifact
    snapshot: Snapshot
    job_id: str | None

    def fields(self) -> dict[str, Any]:
        """The row of ``models.pull`` (contracts section 9)."""
        return {
            "model": self.artifact.model.id,
            "variant": self.artifact.variant.id,
            "engine": self.artifact.engine,
            "artifact_digest": self.artifact.digest,
            "snapshot_path": str(self.snapshot.path),
            "verified_bytes": self.snapshot.verified_bytes,
            "job_id": self.job_id,
        }


async def pull_all(local: Local, artifacts: list[ResolvedArtifact], *, offline: bool) -> list[Pulled]:
    """Every artifact is tried; PullsFailed at the end when some of several failed, the error itself for one."""
    store = SqliteJobStore(local.foundation.jobs_path)
    desk = JobDesk(store, time.time)
    pulled: list[Pulled] = []
    failed = 0
    try:
        with TransferProgress() as progress:
            for artifact in artifacts:
                try:
                    pulled.append(await _pull(local, desk, artifact, progress, offline=offline))
                except SbproxyError as error:
                    if len(artifacts) == 1:
                        raise
                    diagnostics.note(f"{artifact.subject}: {error}")
                    failed += 1
    finally:
        await desk.close()
        store.close()
    if failed:
        raise PullsFailed(failed, len(artifacts))
    return pulled


async def _pull(
    local: Local, desk: JobDesk, artifact: ResolvedArtifact, progress: TransferProgress, *, offline: bool
) -> Pulled:
    files = local.foundation.store
    # A cache hit changes nothing, so it leaves no job behind; a damaged or missing copy does.
    known = isinstance(await asyncio.to_thread(files.state, artifact), Ready)
    job = None if known else await desk.open("pull", artifact.subject)
    loop = asyncio.get_running_loop()
    cancelled = threading.Event()

    def report(at: PullProgress) -> None:
        progress.update(artifact.subject, at.phase, at.completed_bytes, at.total_bytes)
        if job is not None:
            loop.call_soon_threadsafe(_move, job, at)

    def ensure() -> Snapshot:
        return files.ensure(
            artifact,
            intent="explicit",
            policy=artifact.model.pull,
            network=not offline,
            progress=report,
            cancelled=cancelled,
        )

    work = loop.run_in_executor(None, ensure)
    try:
        snapshot = await asyncio.shield(work)
    except asyncio.CancelledError:
        cancelled.set()
        # Its answer is PullCancelled, or a snapshot that was finished just before; both leave the store correct.
        await asyncio.gather(work, return_exceptions=True)
        _fail(job, "cancelled by its user; the part that came is kept", "pull_cancelled")
        raise
    except SbproxyError as error:
        _fail(job, str(error), error.code)
        raise
    _finish(job, snapshot)
    return Pulled(artifact, snapshot, None if job is None else job.id)


def _move(job: Job, at: PullProgress) -> None:
    if at.phase in ("downloading", "verifying") and job.record.terminal_at_ms is None:
        job.progress(at.phase, JobProgress(at.completed_bytes, at.total_bytes, at.file))


def _finish(job: Job | None, snapshot: Snapshot) -> None:
    if job is None:
        return
    # The table knows no way from downloading to ready: what was not verified is not ready.
    if job.record.state == "downloading":
        job.run("verifying")
    job.finish(JobProgress(snapshot.verified_bytes, snapshot.verified_bytes))


def _fail(job: Job | None, error: str, code: str) -> None:
    if job is not None and job.record.terminal_at_ms is None:
        job.fail(error, code)
