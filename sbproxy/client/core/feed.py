"""What a followed stream of the admin API yields, decided from its events (contracts section 18)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sbproxy.api.control import RequestEntry
from sbproxy.api.model_host import Job
from sbproxy.client.core.sse import SseEvent

RECONNECT_DELAYS_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits between tries while nothing arrives; any event starts the row again."""


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """A job as it stood at ``sequence``, the id to resume after."""

    sequence: str | None
    job: Job


@dataclass(frozen=True, slots=True)
class RequestSeen:
    """One finished request of the data plane."""

    sequence: str | None
    entry: RequestEntry


@dataclass(frozen=True, slots=True)
class StreamGap:
    """Events were lost on the way here; ``missed`` is their count where the daemon knows it. Read the state again."""

    sequence: str | None
    missed: int | None


_GAP: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def job_event(event: SseEvent) -> JobUpdate | StreamGap | None:
    """None for an event of a kind that a newer daemon added. Raises ValidationError on a job that is not one."""
    if event.name == "gap":
        return _gap(event)
    if event.name in ("message", "job"):
        return JobUpdate(event.id, Job.model_validate_json(event.data))
    return None


def request_event(event: SseEvent) -> RequestSeen | StreamGap | None:
    """As :func:`job_event`, for the request log."""
    if event.name == "gap":
        return _gap(event)
    if event.name in ("message", "request"):
        return RequestSeen(event.id, RequestEntry.model_validate_json(event.data))
    return None


def _gap(event: SseEvent) -> StreamGap:
    try:
        missed = _GAP.validate_json(event.data).get("missed")
    except ValidationError:
        missed = None
    return StreamGap(event.id, missed if isinstance(missed, int) else None)
