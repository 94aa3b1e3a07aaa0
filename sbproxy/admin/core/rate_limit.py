"""Decides whether one more request of a client is allowed (document 2, "Rate limiting")."""

from __future__ import annotations

from sbproxy.admin.core.windows import Windows

MAX_ADDRESSES = 10_000
GLOBAL_FACTOR = 10


class RateLimit:
    """``per_address`` requests a minute for one address, ``overall`` for all. What is refused is not counted."""

    def __init__(self, per_address: int, overall: int, *, max_addresses: int = MAX_ADDRESSES) -> None:
        # A flood of addresses forgets the oldest one; the overall count still holds the flood down.
        self._addresses = Windows(per_address, max_addresses)
        self._total = Windows(overall, 1)

    def __len__(self) -> int:
        return len(self._addresses)

    def take(self, address: str, now: float) -> bool:
        """Count the request and return True, or return False."""
        if self.retry_after_s(address, now):
            return False
        self._total.add(None, now)
        self._addresses.add(address, now)
        return True

    def retry_after_s(self, address: str, now: float) -> int:
        """Whole seconds until the window that refuses is over; 0 when none does."""
        return max(self._total.wait_s(None, now), self._addresses.wait_s(address, now))
