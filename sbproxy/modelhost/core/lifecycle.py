"""The life of one replica of one generation: which event moves it where, and what is to be done about it.

Decides only; ``sbproxy.modelhost.replica`` feeds events and carries the commands out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sbproxy.engines.core.model import ExitKind, ExitVerdict
from sbproxy.errors.engines import EngineLaunchFailed
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.core.events import (
    GENTLE,
    ArtifactVerified,
    DrainDeadlinePassed,
    DrainRequested,
    EngineExited,
    EngineReady,
    EngineStopped,
    EngineUnresponsive,
    Event,
    PermitsReturned,
    PreparationFailed,
    ResetRequested,
    RestartDue,
    StartRequested,
    StopCause,
)
from sbproxy.modelhost.core.status import AdmissionReason, ReplicaState

DETERMINISTIC: frozenset[ExitKind] = frozenset({ExitKind.BAD_FILE, ExitKind.BAD_FLAG, ExitKind.OUT_OF_MEMORY})
"""Exits that the same plan repeats for ever: the generation is held until a reset or a reload."""

MAX_DETAIL = 512


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Crash restarts, all times in milliseconds.

    The n-th quick exit in a row waits ``first_ms * 2**(n-1)``, at most ``longest_ms``; the ``limit``-th one is a crash
    loop, which only a reset or a reload ends. An exit is quick before the engine was ready or within
    ``stable_after_ms`` of it; a longer run starts the count anew.
    """

    first_ms: int = 500
    longest_ms: int = 30_000
    limit: int = 5
    stable_after_ms: int = 60_000

    def delay_ms(self, quick_exits: int) -> int:
        return int(min(self.first_ms * 2 ** min(quick_exits - 1, 30), self.longest_ms))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a generation is failed. ``hold`` names the reason that keeps requests from starting it again."""

    reason_code: str
    detail: str
    hold: AdmissionReason | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """The machine's whole state. ``restart_pending`` is true while a backoff runs.

    ``stop_cause`` says why the last engine went away; it stays until the next one is ready. ``lost`` is the hung engine
    that is being ended: its end is a crash, unless somebody asked for a stop meanwhile.
    """

    state: ReplicaState = "configured"
    failure: Failure | None = None
    stop_cause: StopCause | None = None
    quick_exits: int = 0
    restart_pending: bool = False
    lost: EngineUnresponsive | None = None

    @property
    def resident(self) -> bool:
        """An engine of this generation runs, starts or stops."""
        return self.state in ("assigned", "preparing", "ready", "draining")

    @property
    def gentle(self) -> bool:
        """It drains, and will be started again for whoever comes meanwhile."""
        return self.state == "draining" and self.lost is None and self.stop_cause in GENTLE

    @property
    def hopeful(self) -> bool:
        """Somebody who waits may still be served by it without anybody else's help."""
        return self.state in ("assigned", "preparing", "ready") or self.restart_pending or self.gentle


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareArtifact:
    """Get the verified snapshot; answer ArtifactVerified or PreparationFailed."""


@dataclass(frozen=True, slots=True)
class LaunchEngine:
    """Reserve memory, start the process, watch it; answer EngineReady, EngineExited or PreparationFailed."""


@dataclass(frozen=True, slots=True)
class CancelPreparation:
    """Give up the pull or launch at work; answer EngineStopped when nothing of it is left."""


@dataclass(frozen=True, slots=True)
class AdmitWaiters:
    """Open the queue."""


@dataclass(frozen=True, slots=True)
class RejectWaiters:
    """Refuse everybody who waits, with ``error`` where there is one, else with ``reason``."""

    reason: AdmissionReason
    error: SbproxyError | None = None


@dataclass(frozen=True, slots=True)
class RevokePermits:
    """The engine behind the issued permits is gone or going: forget them."""


@dataclass(frozen=True, slots=True)
class ArmKeepAlive:
    """Watch for idleness."""


@dataclass(frozen=True, slots=True)
class AwaitPermits:
    """Answer PermitsReturned when nothing is active any more, or DrainDeadlinePassed."""


@dataclass(frozen=True, slots=True)
class StopEngine:
    """TERM, grace, KILL; answer EngineStopped."""


@dataclass(frozen=True, slots=True)
class ScheduleRestart:
    """Answer RestartDue after so many milliseconds."""

    after_ms: int


@dataclass(frozen=True, slots=True)
class CancelRestart:
    """Forget a scheduled restart."""


Command = (
    PrepareArtifact
    | LaunchEngine
    | CancelPreparation
    | AdmitWaiters
    | RejectWaiters
    | RevokePermits
    | ArmKeepAlive
    | AwaitPermits
    | StopEngine
    | ScheduleRestart
    | CancelRestart
)
Step = tuple[Generation, tuple[Command, ...]]

# --- transitions ------------------------------------------------------------------------------------------------------


def _begin(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    return replace(now, state="assigned", restart_pending=False), (PrepareArtifact(),)


def _stay(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    return now, ()


def _cached(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    return replace(now, state="cached"), ()


def _launch(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    return replace(now, state="preparing"), (LaunchEngine(),)


def _ready(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    return replace(now, state="ready", failure=None, stop_cause=None), (AdmitWaiters(), ArmKeepAlive())


def _not_prepared(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    assert isinstance(event, PreparationFailed)  # noqa: S101 - narrows the type; the table guarantees it
    error = event.error
    held = isinstance(error, EngineLaunchFailed) and error.verdict in DETERMINISTIC
    failure = Failure(error.code, str(error)[:MAX_DETAIL], "engine_unhealthy" if held else None)
    return replace(now, state="failed", failure=failure), (RejectWaiters("engine_unhealthy", error),)


def _exited(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    assert isinstance(event, EngineExited)  # noqa: S101 - narrows the type; the table guarantees it
    verdict = event.verdict
    detail = _told(verdict)
    reject = RejectWaiters("engine_unhealthy", event.error)
    cause: StopCause = "unresponsive" if verdict.kind is ExitKind.UNRESPONSIVE else "crash"
    if verdict.kind in DETERMINISTIC:
        failure = Failure("engine_unhealthy", detail, "engine_unhealthy")
        return replace(now, state="failed", failure=failure, stop_cause=cause), (reject, RevokePermits())
    stable = event.uptime_ms is not None and event.uptime_ms >= policy.stable_after_ms
    quick = 1 if stable else now.quick_exits + 1
    if quick >= policy.limit:
        failure = Failure("crash_loop", f"{detail} ({quick} quick exits in a row)"[:MAX_DETAIL], "crash_loop")
        looping = replace(now, state="failed", failure=failure, stop_cause=cause, quick_exits=quick)
        return looping, (reject, RevokePermits())
    failed = replace(
        now,
        state="failed",
        failure=Failure("engine_unhealthy", detail),
        stop_cause=cause,
        quick_exits=quick,
        restart_pending=True,
    )
    return failed, (reject, RevokePermits(), ScheduleRestart(policy.delay_ms(quick)))


def _told(verdict: ExitVerdict) -> str:
    return f"{verdict.kind}: {verdict.detail}"[:MAX_DETAIL]


def _rest(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    assert isinstance(event, DrainRequested)  # noqa: S101 - narrows the type; the table guarantees it
    return replace(now, state="stopped", stop_cause=event.cause), ()


def _give_up(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    assert isinstance(event, DrainRequested)  # noqa: S101 - narrows the type; the table guarantees it
    draining = replace(now, state="draining", stop_cause=event.cause)
    return draining, (*_turn_away(event), CancelPreparation())


def _drain(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    assert isinstance(event, DrainRequested)  # noqa: S101 - narrows the type; the table guarantees it
    return replace(now, state="draining", stop_cause=event.cause), (*_turn_away(event), AwaitPermits())


def _turn_away(event: DrainRequested) -> tuple[Command, ...]:
    return () if event.cause in GENTLE else (RejectWaiters("draining"),)


def _stop(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    return now, (StopEngine(),)


def _cut(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    return now, (RevokePermits(), StopEngine())


def _stopped(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    if now.lost is not None:
        return _exited(replace(now, lost=None), EngineExited(now.lost.verdict, now.lost.uptime_ms), policy)
    return replace(now, state="stopped", failure=None, quick_exits=0), (RevokePermits(),)


def _lose(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    assert isinstance(event, EngineUnresponsive)  # noqa: S101 - narrows the type; the table guarantees it
    # Not failed yet: the process still holds its memory, and a restart beside it could not have it.
    failure = Failure("engine_unhealthy", _told(event.verdict))
    draining = replace(now, state="draining", failure=failure, stop_cause="unresponsive", lost=event)
    return draining, (RejectWaiters("engine_unhealthy"), RevokePermits(), StopEngine())


def _join(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    assert isinstance(event, DrainRequested)  # noqa: S101 - narrows the type; the table guarantees it
    if event.cause in GENTLE:
        return now, ()
    if now.gentle:
        return replace(now, stop_cause=event.cause), (RejectWaiters("draining"),)
    # Whoever wants a hung engine gone wants no restart of it.
    return (now if now.lost is None else replace(now, lost=None, stop_cause=event.cause)), ()


def _meet_draining(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    if now.gentle:
        return now, ()  # the deployment starts it again once it is stopped, for those who wait
    return now, (RejectWaiters("draining" if now.lost is None else "engine_unhealthy"),)


def _heal(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    failure = now.failure
    if failure is not None and failure.hold is not None:
        return now, (RejectWaiters(failure.hold),)
    # A request during the backoff waits for the scheduled try; starting at once would burn the tries under load.
    return (now, ()) if now.restart_pending else _begin(now, event, policy)


def _keep_failed(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    return replace(now, restart_pending=False), (CancelRestart(), RejectWaiters("draining"))


def _reset(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    clean = Generation(stop_cause=now.stop_cause)
    # Callers may be waiting for the restart that a backoff has promised: they get it now.
    return _begin(clean, event, policy) if now.restart_pending else (clean, (CancelRestart(),))


Transition = Callable[[Generation, Event, RestartPolicy], Step]

TABLE: dict[tuple[ReplicaState, type[Event]], Transition] = {
    ("configured", StartRequested): _begin,
    ("configured", ArtifactVerified): _cached,
    ("configured", DrainRequested): _rest,
    ("configured", ResetRequested): _reset,
    ("cached", StartRequested): _begin,
    ("cached", DrainRequested): _rest,
    ("cached", ResetRequested): _reset,
    ("assigned", StartRequested): _stay,
    ("assigned", ArtifactVerified): _launch,
    ("assigned", PreparationFailed): _not_prepared,
    ("assigned", DrainRequested): _give_up,
    ("preparing", StartRequested): _stay,
    ("preparing", EngineReady): _ready,
    ("preparing", EngineExited): _exited,
    ("preparing", PreparationFailed): _not_prepared,
    ("preparing", DrainRequested): _give_up,
    ("ready", StartRequested): _stay,
    ("ready", EngineExited): _exited,
    ("ready", EngineUnresponsive): _lose,
    ("ready", DrainRequested): _drain,
    ("draining", StartRequested): _meet_draining,
    ("draining", DrainRequested): _join,
    ("draining", PermitsReturned): _stop,
    ("draining", DrainDeadlinePassed): _cut,
    ("draining", EngineExited): _stopped,
    ("draining", EngineUnresponsive): _cut,
    ("draining", EngineStopped): _stopped,
    ("stopped", StartRequested): _begin,
    ("stopped", DrainRequested): _stay,
    ("stopped", ResetRequested): _reset,
    ("failed", StartRequested): _heal,
    ("failed", RestartDue): _begin,
    ("failed", DrainRequested): _keep_failed,
    ("failed", ResetRequested): _reset,
}
"""Every legal pair. ``ResetRequested`` has no row where an engine runs, starts or stops: reset is refused there."""


class IllegalEvent(AssertionError):
    """An event that the table does not know in this state: a defect of the caller."""


def step(now: Generation, event: Event, policy: RestartPolicy) -> Step:
    """The next state and what is to be done, in order. Raises IllegalEvent for what the table does not hold."""
    transition = TABLE.get((now.state, type(event)))
    if transition is None:
        raise IllegalEvent(f"{type(event).__name__} in state {now.state}")
    return transition(now, event, policy)
