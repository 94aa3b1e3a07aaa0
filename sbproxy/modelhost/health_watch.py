"""Asks a ready engine for its health, now and then, and says when it counts as hung. What follows is the run's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from sbproxy.engines.driver import EngineProcess
from sbproxy.modelhost.core.health import HealthPolicy

log = logging.getLogger(__name__)


class HealthWatch:
    """``lost`` gets the reason, once; ``healthy`` is called after every answer.

    ``run`` is a task that its owner cancels when the engine is gone.
    """

    def __init__(
        self, deployment: str, process: EngineProcess, policy: HealthPolicy, healthy: Callable[[], None]
    ) -> None:
        self._deployment = deployment
        self._process = process
        self._policy = policy
        self._healthy = healthy
        self._soon = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def suspect(self) -> None:
        """A request failed on this engine: ask soon."""
        self._soon.set()

    async def run(self) -> None:
        policy = self._policy
        missed = 0
        while missed < policy.misses:
            await self._pause(missed)
            if await self._process.healthy(policy.timeout_s):
                missed = 0
                self._healthy()
                continue
            missed += 1
            pid, of = self._process.pid, policy.misses
            log.warning("%s: the engine (pid %d) missed health check %d of %d", self._deployment, pid, missed, of)
        self.lost.set_result(f"no answer to {missed} health checks in a row, {policy.timeout_s:g} s each")

    async def _pause(self, missed: int) -> None:
        # Also after a suspicion: a burst of failed requests must neither flood the engine nor use up all its tries.
        await asyncio.sleep(self._policy.retry_s)
        if missed == 0:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes in the turn of the suspicion.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._policy.period_s - self._policy.retry_s):
                    await self._soon.wait()
        self._soon.clear()
