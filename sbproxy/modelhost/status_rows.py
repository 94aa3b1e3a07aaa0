"""Puts a replica at work into the row that status shows (contracts section 19), and measures its memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from sbproxy.modelhost.core.status import StatusRow
from sbproxy.modelhost.deployment import Deployment
from sbproxy.modelhost.ledger import ReservationLedger
from sbproxy.modelhost.replica import Replica


def status_row(
    deployment: Deployment, replica: Replica, ledger: ReservationLedger, availability: str, now_ms: int
) -> StatusRow:
    """One row. The queue is the deployment's, and every replica's row shows it."""
    machine, config, artifact = replica.machine, deployment.config, deployment.artifact
    memory = ledger.held_by((deployment.id, deployment.generation, replica.index))
    run = replica.run
    process = run.process if run else None
    binary = run.binary if run else None
    reason, detail = _trouble(replica)
    return StatusRow(
        deployment=deployment.id,
        replica=replica.index,
        generation=deployment.generation,
        state=machine.state,
        active_requests=replica.active,
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
        resident_bytes=replica.resident_bytes,
        port=process.endpoint.port if process else None,
        pid=process.pid if process else None,
        reason_code=reason,
        job_id=replica.journal.job_id,
        last_error=detail,
        keep_alive_secs=config.keep_alive_secs,
        expires_at_ms=_expires_at_ms(deployment, now_ms) if machine.state == "ready" else None,
        stop_cause=machine.stop_cause,
    )


def _trouble(replica: Replica) -> tuple[str | None, str | None]:
    """Reason code and text of what keeps this replica from serving."""
    run = replica.run
    if run is not None and run.stop_failure is not None:
        return run.stop_failure.code, str(run.stop_failure)
    if replica.waits_for_room is not None:
        return "insufficient_capacity", replica.waits_for_room()
    failure = replica.machine.failure if replica.machine.state == "failed" else None
    return (failure.reason_code, failure.detail) if failure else (None, None)


def _expires_at_ms(deployment: Deployment, now_ms: int) -> int | None:
    remaining = deployment.keep_alive.remaining_s if deployment.keep_alive else None
    return None if remaining is None else now_ms + int(remaining * 1000)


async def measure(deployments: list[Deployment]) -> None:
    """Note the resident memory of every engine process, read in a worker thread (field report 46)."""
    running = {
        replica: replica.run.process.pid
        for deployment in deployments
        for replica in deployment.replicas
        if replica.run is not None and replica.run.process is not None
    }
    sizes = await asyncio.to_thread(lambda: {pid: resident_bytes(pid) for pid in running.values()})
    for replica, pid in running.items():
        # Only if that process is still the one: it may have been replaced while we read.
        if replica.run is not None and replica.run.process is not None and replica.run.process.pid == pid:
            replica.resident_bytes = sizes[pid]


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
