"""Writes job records in order on a thread of its own, and holds what the store does not take until it does.

A full disk or a locked file costs durability for that long, never the operation that the job is about.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from sbproxy.errors.modelhost import JobStoreUnusable
from sbproxy.modelhost.core.jobs import TERMINAL, JobId, JobRecord
from sbproxy.modelhost.ports import JobStore

RETRY_S = 5.0
"""A store that has refused is asked again after so long, with the next write or read."""
MAX_HELD = 1000
"""Finished records held for a store that takes none; the oldest are forgotten beyond that."""

log = logging.getLogger(__name__)


class JobWriter:
    """What is behind the public methods runs on the one thread, so nothing here needs a lock."""

    def __init__(self, store: JobStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jobs")
        self._held: dict[JobId, JobRecord] = {}
        self._refused_at: float | None = None
        self._closed = False

    def write(self, record: JobRecord) -> Future[None]:
        """Done when the record is stored, or held because the store refuses."""
        written = self._thread.submit(self._write, record)
        written.add_done_callback(_log_defect)
        return written

    def read(self, job_id: JobId) -> Future[JobRecord | None]:
        """Carries JobStoreUnusable when the store cannot be read."""
        return self._thread.submit(self._read, job_id)

    def read_all(self) -> Future[list[JobRecord]]:
        """Oldest first; carries JobStoreUnusable when the store cannot be read."""
        return self._thread.submit(self._read_all)

    def close(self) -> None:
        """Blocking and idempotent: try once more to store what is held, and end the thread."""
        if not self._closed:
            self._closed = True
            self._thread.submit(self._last_try)
        self._thread.shutdown()

    def _write(self, record: JobRecord) -> None:
        self._held.pop(record.id, None)
        self._held[record.id] = record
        self._flush()

    def _read(self, job_id: JobId) -> JobRecord | None:
        self._flush()
        held = self._held.get(job_id)
        return held if held is not None else self._store.get(job_id)

    def _read_all(self) -> list[JobRecord]:
        self._flush()
        stored = {record.id: record for record in self._store.jobs()}
        return sorted({**stored, **self._held}.values(), key=lambda job: (job.created_at_ms, job.id))

    def _flush(self) -> None:
        if self._refused_at is not None and self._monotonic() - self._refused_at < RETRY_S:
            self._forget_excess()
            return
        try:
            for record in list(self._held.values()):
                self._store.save(record)
                del self._held[record.id]
        except JobStoreUnusable as error:
            if self._refused_at is None:
                log.error("job_store_refuses held=%d: %s; jobs go on and are kept in memory", len(self._held), error)
            self._refused_at = self._monotonic()
            self._forget_excess()
            return
        if self._refused_at is not None:
            log.warning("job_store_recovered")
            self._refused_at = None

    def _forget_excess(self) -> None:
        finished = [job_id for job_id, record in self._held.items() if record.state in TERMINAL]
        for job_id in finished[: max(0, len(finished) - MAX_HELD)]:
            del self._held[job_id]

    def _last_try(self) -> None:
        self._refused_at = None
        self._flush()
        if self._held:
            log.error("job_store_refuses: %d job records are lost with this process", len(self._held))


def _log_defect(written: Future[None]) -> None:
    """Most writes are awaited by nobody. A cancelled one has a successor: its opener left, and the job tells so."""
    if not written.cancelled() and (defect := written.exception()) is not None:
        log.error("writing a job broke", exc_info=defect)
