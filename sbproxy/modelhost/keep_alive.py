"""Watches one ready engine for idleness (document 1: keep-alive starts after the last permit is released)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sbproxy.modelhost.gate import Gate


class KeepAlive:
    """Calls ``expired`` once the gate has been idle for ``seconds``; active and queued work hold it off.

    One lazy timer: requests never touch it, it looks at the gate when it fires and sleeps for what is left.
    """

    def __init__(self, seconds: int, gate: Gate, expired: Callable[[], None]) -> None:
        self._seconds = seconds
        self._gate = gate
        self._expired = expired
        self._timer: asyncio.TimerHandle | None = None

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the engine goes if nothing happens; None while it is busy or was never used."""
        idle_since = self._gate.idle_since
        if idle_since is None or self._busy:
            return None
        return max(0.0, idle_since + self._seconds - asyncio.get_running_loop().time())

    def arm(self) -> None:
        """Look again as soon as expiry is possible."""
        self.disarm()
        left = self.remaining_s
        wait_s = self._seconds if left is None else left
        if left is None and self._seconds == 0:
            return  # busy: the gate says when it is idle, and that arms again
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def idle(self) -> None:
        """The gate went idle. With a keep-alive of 0 that is the end; else the timer that runs finds it out."""
        if self._seconds == 0:
            self.arm()

    @property
    def _busy(self) -> bool:
        return self._gate.active > 0 or self._gate.waiting > 0

    def _look(self) -> None:
        self._timer = None
        left = self.remaining_s
        if left is not None and left <= 0:
            self._expired()
        else:
            self.arm()
