"""What can happen to the console, in the past tense. Times are seconds of one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sbproxy.api.model_host import HostStatus, Job


@dataclass(frozen=True, slots=True)
class StatusArrived:
    """A fresh answer of the status and jobs routes."""

    status: HostStatus
    jobs: tuple[Job, ...]
    at: float


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A poll failed. ``kind`` decides the link state; ``retry_in_s`` is the pause before the next try."""

    kind: Literal["transport", "signed_out", "refused"]
    detail: str
    retry_in_s: float
    at: float


@dataclass(frozen=True, slots=True)
class ActionSucceeded:
    text: str


@dataclass(frozen=True, slots=True)
class ActionFailed:
    text: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed: ages are rendered from the state, so that tests own the clock."""

    at: float


ConsoleEvent = StatusArrived | FetchFailed | ActionSucceeded | ActionFailed | Ticked
