"""Decides whether one more request of a client is allowed (document 2, "Rate limiting").

Fixed windows of a minute, per address and for all together; the caller brings the time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

WINDOW_S = 60.0
MAX_ADDRESSES = 10_000
GLOBAL_FACTOR = 10


@dataclass(slots=True)
class _Window:
    started: float
    count: int = 0

    def at(self, now: float) -> _Window:
        if now - self.started >= WINDOW_S:
            self.started, self.count = now, 0
        return self


class RateLimit:
    """``per_address`` requests a minute for one address, ``overall`` for all. What is refused is not counted."""

    def __init__(self, per_address: int, overall: int, *, max_addresses: int = MAX_ADDRESSES) -> None:
        self._per_address = per_address
        self._overall = overall
        self._max_addresses = max_addresses
        self._total = _Window(float("-inf"))
        # Ordered by the start of the window, so that the front is what can be forgotten first.
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def exhausted(self, address: str, now: float) -> bool:
        """Whether the next request would be refused. Counts nothing."""
        window = self._windows.get(address)
        return self._total.at(now).count >= self._overall or (
            window is not None and now - window.started < WINDOW_S and window.count >= self._per_address
        )

    def take(self, address: str, now: float) -> bool:
        """Count the request and return True, or return False."""
        if self.exhausted(address, now):
            return False
        self._total.count += 1
        self._window(address, now).count += 1
        return True

    def retry_after_s(self, address: str, now: float) -> int:
        """Whole seconds until the window that refuses is over."""
        window = self._windows.get(address)
        starts = [self._total.started] if self._total.count >= self._overall else []
        if window is not None and window.count >= self._per_address:
            starts.append(window.started)
        return max(1, round(max((start + WINDOW_S - now for start in starts), default=1)))

    def _window(self, address: str, now: float) -> _Window:
        window = self._windows.get(address)
        if window is not None and now - window.started < WINDOW_S:
            return window
        if window is None and len(self._windows) >= self._max_addresses:
            # A flood of addresses forgets the oldest one; the overall count still holds the flood down.
            self._windows.popitem(last=False)
        window = self._windows[address] = _Window(now)
        self._windows.move_to_end(address)
        return window
