"""Puts a deployment at work into the row that status shows (contracts section 19), and measures its memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from sbproxy.modelhost.core.status import StatusRow
from sbproxy.modelhost.deployment import Deployment
from sbproxy.modelhost.residency import ReservationLedger


def status_row(deployment: Deployment, ledger: ReservationLedger, availability: str, now_ms: int) -> StatusRow:
    """One row; replica 0 is the only one until deployments carry several."""
    machine, config, artifact = deployment.machine, deployment.config, deployment.artifact
    memory = ledger.held_by((deployment.id, deployment.generation))
    run = deployment.run
    process = run.process if run else None
    binary = run.binary if run else None
    failure = machine.failure if machine.state == "failed" else None
    reason, detail = (failure.reason_code, failure.detail) if failure else (None, None)
    if run is not None and run.stop_failure is not None:
        reason, detail = run.stop_failure.code, str(run.stop_failure)
    return StatusRow(
        deployment=deployment.id,
        replica=0,
        generation=deployment.generation,
        state=machine.state,
        active_requests=deployment.gate.active,
        queued_requests=deployment.gate.waiting,
        max_concurrency=config.concurrency,
        max_queue_depth=config.max_queue_depth,
        engine=artifact.engine,
        engine_version=binary.version if binary else None,
        driver_availability=availability,
        model=artifact.model.id,
        variant=artifact.variant.id,
        artifact_digest=artifact.digest,
        selected_devices=memory.device_indexes if memory else (),
        memory=memory,
        resident_bytes=deployment.resident_bytes,
        port=process.endpoint.port if process else None,
        pid=process.pid if process else None,
        reason_code=reason,
        job_id=deployment.journal.job_id,
        last_error=detail,
        keep_alive_secs=config.keep_alive_secs,
        expires_at_ms=_expires_at_ms(deployment, now_ms),
        stop_cause=machine.stop_cause,
    )


def _expires_at_ms(deployment: Deployment, now_ms: int) -> int | None:
    remaining = deployment.keep_alive.remaining_s if deployment.keep_alive else None
    return None if remaining is None else now_ms + int(remaining * 1000)


async def measure(deployments: list[Deployment]) -> None:
    """Note the resident memory of every engine process, read in a worker thread (field report 46)."""
    pids = {d: d.run.process.pid for d in deployments if d.run is not None and d.run.process is not None}
    sizes = await asyncio.to_thread(lambda: {pid: resident_bytes(pid) for pid in pids.values()})
    for deployment, pid in pids.items():
        # Only if that process is still the one: it may have been replaced while we read.
        if deployment.run is not None and deployment.run.process is not None and deployment.run.process.pid == pid:
            deployment.resident_bytes = sizes[pid]


def resident_bytes(pid: int) -> int | None:
    """Memory that one process holds, in bytes; None where the system does not tell through /proc.

    The proportional set: a page that several engines map, such as a library's, counts once over all of them. Where
    the kernel does not add it up, the resident set.
    """
    proc = Path(f"/proc/{pid}")
    try:
        for line in (proc / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    try:
        return int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
