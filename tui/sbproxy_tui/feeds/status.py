"""The poll of status and jobs: one feed, every two seconds, backing off while the daemon is away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Literal

from sbproxy.client import AdminClient
from sbproxy.errors import SbproxyError
from sbproxy.errors.client import DaemonUnreachable, Unauthorized
from sbproxy_tui.view.events import FetchFailed, StatusArrived
from sbproxy_tui.view.state import STATUS_INTERVAL_S

BACK_OFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)

Deliver = Callable[[StatusArrived | FetchFailed], None]


class StatusFeed:
    """Owns its pace. ``wake`` ends the current pause, for a refresh or after an action."""

    def __init__(self, client: AdminClient, deliver: Deliver) -> None:
        self._client = client
        self._deliver = deliver
        self._wake = asyncio.Event()
        self._failures = 0

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            pause = await self._poll()
            self._wake.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _poll(self) -> float:
        try:
            status = await self._client.status()
            jobs = await self._client.jobs()
        except SbproxyError as error:
            pause = self._next_pause()
            self._deliver(FetchFailed(_kind(error), str(error), pause, time.monotonic()))
            return pause
        self._failures = 0
        self._deliver(StatusArrived(status, tuple(jobs), time.monotonic()))
        return STATUS_INTERVAL_S

    def _next_pause(self) -> float:
        pause = BACK_OFF_S[min(self._failures, len(BACK_OFF_S) - 1)]
        self._failures += 1
        return pause * random.uniform(0.9, 1.1)  # noqa: S311 - spreads consoles out, guards nothing


def _kind(error: SbproxyError) -> Literal["transport", "signed_out", "refused"]:
    if isinstance(error, Unauthorized):
        return "signed_out"
    return "transport" if isinstance(error, DaemonUnreachable) else "refused"
