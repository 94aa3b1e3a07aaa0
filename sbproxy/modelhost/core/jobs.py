"""Job records and their legal moves (contracts section 18). Storage lives in ``sbproxy.modelhost.job_store``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NewType

JobId = NewType("JobId", str)
"""A ULID, 26 characters of Crockford base32."""

JobKind = Literal["pull", "verify", "provision", "launch", "load", "drain", "stop", "rollout", "delete", "reset"]
JobState = Literal["queued", "running", "downloading", "verifying", "ready", "failed", "deleting", "deleted"]
TERMINAL: frozenset[JobState] = frozenset({"ready", "failed", "deleted"})


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Byte counts; ``total_bytes`` never changes once known and ``completed_bytes`` never falls."""

    completed_bytes: int = 0
    total_bytes: int | None = None
    current_file: str | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One durable operation. Times are Unix milliseconds."""

    id: JobId
    kind: JobKind
    subject: str
    state: JobState
    progress: JobProgress
    created_at_ms: int
    updated_at_ms: int
    terminal_at_ms: int | None = None
    error: str | None = None
    error_code: str | None = None
