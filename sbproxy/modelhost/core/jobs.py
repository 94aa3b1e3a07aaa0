"""Job records and their legal moves (contracts section 18). Storage lives in ``sbproxy.modelhost.job_store``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, NewType

JobId = NewType("JobId", str)
"""A ULID, 26 characters of Crockford base32."""

JobKind = Literal["pull", "verify", "provision", "launch", "load", "drain", "stop", "rollout", "delete", "reset"]
JobState = Literal["queued", "running", "downloading", "verifying", "ready", "failed", "deleting", "deleted"]
StopKind = Literal["stop", "drain"]
"""One operation under the two names that operators ask for it (document 2)."""

TERMINAL: frozenset[JobState] = frozenset({"ready", "failed", "deleted"})

_LIFECYCLE: dict[JobState, frozenset[JobState]] = {
    "queued": frozenset({"running", "ready", "failed"}),
    "running": frozenset({"running", "ready", "failed"}),
}
LEGAL_MOVES: dict[JobKind, dict[JobState, frozenset[JobState]]] = {
    "pull": {
        "queued": frozenset({"downloading", "verifying", "ready", "failed"}),
        "downloading": frozenset({"downloading", "verifying", "failed"}),
        "verifying": frozenset({"verifying", "ready", "failed"}),
    },
    "verify": {
        "queued": frozenset({"verifying", "ready", "failed"}),
        "verifying": frozenset({"verifying", "ready", "failed"}),
    },
    "delete": {
        "queued": frozenset({"deleting", "failed"}),
        "deleting": frozenset({"deleting", "deleted", "failed"}),
    },
    "provision": _LIFECYCLE,
    "launch": _LIFECYCLE,
    "load": _LIFECYCLE,
    "drain": _LIFECYCLE,
    "stop": _LIFECYCLE,
    "rollout": _LIFECYCLE,
    "reset": _LIFECYCLE,
}
"""``running`` makes a lifecycle operation at work visible; a terminal state has no row, so nothing leaves it."""

ENDED_EARLY = "cancelled"
"""``error_code`` of a job that its operator, or everybody who wanted it, has given up."""
INTERRUPTED = "interrupted"
"""``error_code`` of a job whose process ended before it."""

IRREVOCABLE: dict[JobKind, str] = {
    "stop": "a stop that has begun goes to its end; load the deployment again afterwards",
    "drain": "a drain that has begun goes to its end; load the deployment again afterwards",
    "delete": "files that are being removed are not brought back; pull the artifact again afterwards",
    "reset": "a reset is done at once",
}
"""Why a job of this kind is never cancelled. Others are where whoever works for them offers a way back."""

MAX_SUBJECT = 512
MAX_ERROR = 1024
_BEARER = re.compile(r"(?i)\bbearer\s+[^\s\"',;]+")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\u00a0-\ufffd]+")


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
    note: str | None = None
    """What a job that ended well has to tell, such as answers that a drain had to cut."""
    sequence: int | None = None
    """Number of the event that told this state; None while no daemon has told it."""


class IllegalMove(ValueError):
    """A move that the table does not hold: a defect of the caller."""


def new_job(job: JobId, kind: JobKind, subject: str, now_ms: int) -> JobRecord:
    """A queued job. The subject is cut to 512 printable characters."""
    printable = _UNPRINTABLE.sub("?", subject)[:MAX_SUBJECT]
    return JobRecord(job, kind, printable, "queued", JobProgress(), now_ms, now_ms)


def move(
    job: JobRecord,
    state: JobState,
    now_ms: int,
    *,
    progress: JobProgress | None = None,
    error: str | None = None,
    error_code: str | None = None,
    note: str | None = None,
) -> JobRecord:
    """The job after one legal move; raises IllegalMove. Progress is kept monotonic, texts are bounded and redacted."""
    if state not in LEGAL_MOVES[job.kind].get(job.state, frozenset()):
        raise IllegalMove(f"a {job.kind} job cannot go from {job.state} to {state}")
    now_ms = max(now_ms, job.updated_at_ms)
    return replace(
        job,
        state=state,
        progress=job.progress if progress is None else _forward(job.progress, progress),
        updated_at_ms=now_ms,
        terminal_at_ms=now_ms if state in TERMINAL else None,
        error=None if error is None else redact(error),
        error_code=error_code,
        note=None if note is None else redact(note),
    )


def redact(text: str) -> str:
    """One bounded, printable line without bearer tokens."""
    return _UNPRINTABLE.sub(" ", _BEARER.sub("Bearer [REDACTED]", text))[:MAX_ERROR]


def _forward(old: JobProgress, new: JobProgress) -> JobProgress:
    total = old.total_bytes if old.total_bytes is not None else new.total_bytes
    completed = max(old.completed_bytes, new.completed_bytes)
    return JobProgress(completed if total is None else min(completed, total), total, new.current_file)
