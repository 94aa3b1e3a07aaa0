"""Gets engine binaries from the drivers: one acquisition an engine at a time, with a durable job when it fetches."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from sbproxy.engines.core.model import EngineBinary
from sbproxy.engines.driver import EngineDriver
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.jobs import JobProgress
from sbproxy.modelhost.job_desk import Job, JobDesk


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
        job.run()

        def progress(what: str, done: int, total: int | None) -> None:
            loop.call_soon_threadsafe(_tell, job, JobProgress(done, total, what))

        try:
            binary = await asyncio.to_thread(driver.acquire, progress)
        except SbproxyError as error:
            job.fail(str(error), error.code)
            raise
        except asyncio.CancelledError:
            job.fail("the start that needed the engine was given up", "cancelled")
            raise
        job.finish()
        return binary


def _tell(job: Job, progress: JobProgress) -> None:
    if job.record.state == "running":
        job.progress("running", progress)


def _ignore(what: str, done: int, total: int | None) -> None:
    """An engine that is here already has nothing to tell."""
