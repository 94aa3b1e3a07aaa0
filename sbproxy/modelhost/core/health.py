"""When a ready engine counts as hung (contracts section 45 leaves the numbers to us; field report 52)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """Seconds, but for ``misses``: so many health checks in a row without an answer are the end of the engine.

    A healthy engine is asked every ``period_s``, or ``retry_s`` after a request has failed on it; after a miss it is
    asked again every ``retry_s``. With the defaults a hung engine is ended at the latest
    ``period_s + (misses - 1) * retry_s + misses * timeout_s`` = 27 seconds after it hung.
    """

    period_s: float = 10.0
    retry_s: float = 1.0
    timeout_s: float = 5.0
    misses: int = 3
