"""Gets engine binaries from the drivers: one acquisition a driver however many want it, with a durable job.

The driver decides where a binary comes from. A fetch ends soon after its job is cancelled or nobody wants it any more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from sbproxy.engines.core.model import EngineBinary
from sbproxy.engines.driver import AcquireProgress, EngineDriver
from sbproxy.errors.engines import EngineAcquisitionCancelled
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.jobs import ENDED_EARLY, JobProgress
from sbproxy.modelhost.job_desk import Job, JobDesk

log = logging.getLogger(__name__)

FAREWELL_S = 2.0
"""How long the last one to leave waits for the fetch to end, so that nothing of it outlives the start it was for."""


@dataclass(slots=True, eq=False)
class _Acquisition:
    task: asyncio.Task[EngineBinary]
    cancelled: threading.Event
    interested: int = 0


class EngineSupply:
    """All acquisitions of this process."""

    def __init__(self, jobs: JobDesk) -> None:
        self._jobs = jobs
        self._running: dict[EngineDriver, _Acquisition] = {}

    async def binary(self, driver: EngineDriver) -> EngineBinary:
        """Raises EngineBlocked, EngineIncompatible, EngineAcquisitionFailed or EngineAcquisitionCancelled.

        A caller that is cancelled leaves the acquisition to the others; the last one to leave ends it.
        """
        if self._shared(driver) is None:
            availability = await asyncio.to_thread(driver.availability)
            if availability.state != "acquirable":
                return await asyncio.to_thread(driver.acquire, _ignore)
        # Looked up anew: others were asking meanwhile.
        return await self._join(self._shared(driver) or self._begin(driver))

    def _shared(self, driver: EngineDriver) -> _Acquisition | None:
        """The acquisition under way that may still be joined."""
        found = self._running.get(driver)
        return None if found is None or found.cancelled.is_set() else found

    def _begin(self, driver: EngineDriver) -> _Acquisition:
        cancelled = threading.Event()
        task = asyncio.get_running_loop().create_task(
            self._provision(driver, cancelled), name=f"provision {driver.name}"
        )
        shared = self._running[driver] = _Acquisition(task, cancelled)
        task.add_done_callback(partial(self._ended, driver, shared))
        return shared

    async def _join(self, shared: _Acquisition) -> EngineBinary:
        shared.interested += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.interested -= 1
            if shared.interested == 0 and not shared.task.done():
                shared.cancelled.set()
                await asyncio.wait((shared.task,), timeout=FAREWELL_S)

    def _ended(self, driver: EngineDriver, shared: _Acquisition, task: asyncio.Task[EngineBinary]) -> None:
        if self._running.get(driver) is shared:
            del self._running[driver]
        if not task.cancelled():
            task.exception()  # everybody may have left; the job has the error

    async def _provision(self, driver: EngineDriver, cancelled: threading.Event) -> EngineBinary:
        job = self._jobs.begin("provision", driver.name)
        job.run()
        job.on_cancel(cancelled.set)
        loop = asyncio.get_running_loop()
        started, size = loop.time(), 0
        log.info("provision_started engine=%s job=%s", driver.name, job.id)

        def progress(what: str, done: int, total: int | None) -> None:
            nonlocal size
            if cancelled.is_set():
                raise EngineAcquisitionCancelled(driver.name)
            size = max(size, done)
            loop.call_soon_threadsafe(_tell, job, JobProgress(done, total, what))

        try:
            binary = await asyncio.wrap_future(_in_own_thread(driver, progress))
        except SbproxyError as error:
            log.error("provision_failed engine=%s job=%s: %s", driver.name, job.id, error)
            _fail(job, str(error), ENDED_EARLY if isinstance(error, EngineAcquisitionCancelled) else error.code)
            raise
        except asyncio.CancelledError:
            cancelled.set()
            _fail(job, "the daemon did not wait for it any longer", ENDED_EARLY)
            raise
        if not job.ended:
            job.finish()
        log.info(
            "provision_finished engine=%s version=%s bytes=%d seconds=%.1f job=%s",
            driver.name,
            binary.version,
            size,
            loop.time() - started,
            job.id,
        )
        return binary


def _in_own_thread(driver: EngineDriver, progress: AcquireProgress) -> Future[EngineBinary]:
    """Not in the loop's pool, whose threads an ending process waits for: a server that has gone silent is not told."""
    outcome: Future[EngineBinary] = Future()
    outcome.set_running_or_notify_cancel()
    work: Callable[[], EngineBinary] = partial(driver.acquire, progress)
    threading.Thread(target=_run, args=(work, outcome), name=f"acquire {driver.name}", daemon=True).start()
    return outcome


def _run(work: Callable[[], EngineBinary], outcome: Future[EngineBinary]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - the top of the thread; whoever waits gets it
        outcome.set_exception(error)
    else:
        outcome.set_result(result)


def _fail(job: Job, error: str, code: str) -> None:
    if not job.ended:
        job.fail(error, code)


def _tell(job: Job, progress: JobProgress) -> None:
    if job.record.state == "running":
        job.progress("running", progress)


def _ignore(what: str, done: int, total: int | None) -> None:
    """An engine that is here already has nothing to tell."""
