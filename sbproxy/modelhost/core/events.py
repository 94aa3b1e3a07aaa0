"""What happens to one generation: the events of ``core.lifecycle``, and the cause that the log names for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sbproxy.engines.core.model import ExitVerdict
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.jobs import JobId

StartCause = Literal["request", "load", "warm", "restore"]
"""Who wanted the engine: a request, an operator, a boot or reload, or a reload that is being undone."""

StopCause = Literal["keep_alive", "capacity", "abandoned", "operator", "reload", "shutdown", "crash", "unresponsive"]
"""Why an engine went away. ``capacity``: it was idle and another needed the room. ``abandoned``: everybody who had
waited for its start left before there was room for it."""

GENTLE: frozenset[StopCause] = frozenset({"keep_alive", "capacity", "abandoned"})
"""Stops that nobody asked for: a request that comes meanwhile waits for the next start instead of being refused."""


@dataclass(frozen=True, slots=True)
class StartRequested:
    """Somebody wants the engine. ``job``: the durable job that its author has opened for it."""

    cause: StartCause = "request"
    job: JobId | None = None


@dataclass(frozen=True, slots=True)
class ArtifactVerified:
    """The snapshot is in the cache and its bytes are right."""


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """The artifact, the memory or the engine binary cannot be had, or the launch was refused."""

    error: SbproxyError


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine answers its health check."""


@dataclass(frozen=True, slots=True)
class EngineExited:
    """The process ended unasked. ``uptime_ms`` counts from readiness; None when it never got there."""

    verdict: ExitVerdict
    uptime_ms: int | None
    error: SbproxyError | None = None


@dataclass(frozen=True, slots=True)
class EngineUnresponsive:
    """The process runs and did not answer its health checks. ``uptime_ms`` counts from readiness.

    Whoever reports this ends the process; EngineStopped follows.
    """

    verdict: ExitVerdict
    uptime_ms: int


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Somebody wants the engine gone. ``job``: the durable job that its author has opened for it."""

    cause: StopCause
    job: JobId | None = None


@dataclass(frozen=True, slots=True)
class PermitsReturned:
    """The last active request of a draining generation ended."""


@dataclass(frozen=True, slots=True)
class DrainDeadlinePassed:
    """Requests are still active at the end of ``shutdown_deadline_ms``."""


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """The process that we asked to end has ended, or a cancelled preparation has let go of everything."""


@dataclass(frozen=True, slots=True)
class RestartDue:
    """A crash backoff ran out."""


@dataclass(frozen=True, slots=True)
class ResetRequested:
    """An operator clears a failure."""


Event = (
    StartRequested
    | ArtifactVerified
    | PreparationFailed
    | EngineReady
    | EngineExited
    | EngineUnresponsive
    | DrainRequested
    | PermitsReturned
    | DrainDeadlinePassed
    | EngineStopped
    | RestartDue
    | ResetRequested
)

_CAUSES: dict[type[Event], str] = {
    ArtifactVerified: "artifact_verified",
    EngineReady: "engine_ready",
    PermitsReturned: "permits_returned",
    DrainDeadlinePassed: "drain_deadline",
    EngineStopped: "engine_stopped",
    RestartDue: "restart",
    ResetRequested: "reset",
}


def cause_of(event: Event) -> str:
    """One word for the log: who asked, or what happened."""
    match event:
        case StartRequested(cause=cause) | DrainRequested(cause=cause):
            return cause
        case PreparationFailed(error=error):
            return error.code
        case EngineExited(verdict=verdict) | EngineUnresponsive(verdict=verdict):
            return verdict.kind
        case _:
            return _CAUSES[type(event)]
