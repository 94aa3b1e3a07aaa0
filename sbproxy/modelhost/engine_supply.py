"""Gets engine binaries from the drivers: one acquisition an engine at a time, with a durable job when it fetches."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

from sbproxy.engines.core.model import EngineBinary
from sbproxy.engines.driver import EngineDriver
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.jobs import JobProgress
from sbproxy.modelhost.job_desk import Job, JobDesk

log = logging.getLogger(__name__)


class EngineSupply:
    """The driver decides where a binary comes from; this only keeps several starts from fetching it twice."""

    def __init__(self, jobs: JobDesk) -> None:
        self._jobs = jobs
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def binary(self, driver: EngineDriver) -> EngineBinary:
        """Raises EngineBlocked, EngineIncompatible or EngineAcquisitionFailed."""
        async with self._locks[driver.name]:
            availability = await asyncio.to_thread(driver.availability)
            if availability.state != "acquirable":
                return await asyncio.to_thread(driver.acquire, _ignore)
            job = await self._jobs.open("provision", driver.name)
            return await self._provision(driver, job)

    async def _provision(self, driver: EngineDriver, job: Job) -> EngineBinary:
        loop = asyncio.get_running_loop()
        started = loop.time()
        size = 0
        job.run()
        log.info("provision_started engine=%s job=%s", driver.name, job.id)

        def progress(what: str, done: int, total: int | None) -> None:
            nonlocal size
            size = max(size, done)
            loop.call_soon_threadsafe(_tell, job, JobProgress(done, total, what))

        try:
            binary = await asyncio.to_thread(driver.acquire, progress)
        except SbproxyError as error:
            log.error("provision_failed engine=%s job=%s: %s", driver.name, job.id, error)
            job.fail(str(error), error.code)
            raise
        except asyncio.CancelledError:
            job.fail("the start that needed the engine was given up", "cancelled")
            raise
        job.finish()
        seconds = loop.time() - started
        log.info(
            "provision_finished engine=%s version=%s bytes=%d seconds=%.1f job=%s",
            driver.name,
            binary.version,
            size,
            seconds,
            job.id,
        )
        return binary


def _tell(job: Job, progress: JobProgress) -> None:
    if job.record.state == "running":
        job.progress("running", progress)


def _ignore(what: str, done: int, total: int | None) -> None:
    """An engine that is here already has nothing to tell."""
