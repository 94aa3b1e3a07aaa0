"""Counts events a minute by key, in fixed windows and in bounded memory; the caller brings the time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

WINDOW_S = 60.0


@dataclass(slots=True)
class _Window:
    started: float
    count: int = 0


class Windows:
    """At most ``limit`` events a window and key. Of more than ``max_keys`` keys the oldest window is forgotten."""

    def __init__(self, limit: int, max_keys: int) -> None:
        self._limit = limit
        self._max_keys = max_keys
        # Ordered by the start of the window, so that the front is what can be forgotten first.
        self._windows: OrderedDict[Hashable, _Window] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def wait_s(self, key: Hashable, now: float) -> int:
        """0 when one more event is allowed, or else whole seconds until the window is over. Counts nothing."""
        window = self._current(key, now)
        if window is None or window.count < self._limit:
            return 0
        return max(1, round(window.started + WINDOW_S - now))

    def add(self, key: Hashable, now: float) -> None:
        """Count one event, whether or not it is allowed."""
        window = self._current(key, now)
        if window is None:
            if key not in self._windows and len(self._windows) >= self._max_keys:
                self._windows.popitem(last=False)
            window = self._windows[key] = _Window(now)
            self._windows.move_to_end(key)
        window.count += 1

    def take_back(self, key: Hashable, now: float, count: int) -> None:
        """Uncount up to ``count`` events of the current window."""
        window = self._current(key, now)
        if window is not None:
            window.count = max(0, window.count - count)

    def _current(self, key: Hashable, now: float) -> _Window | None:
        window = self._windows.get(key)
        return window if window is not None and now - window.started < WINDOW_S else None
