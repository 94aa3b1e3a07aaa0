"""The generation machine: a walk over its whole table, playbooks of lives, and the limits of restarts."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.engines.core.model import ExitKind, ExitVerdict
from sbproxy.errors.artifacts import TransportFailed
from sbproxy.errors.engines import EngineLaunchFailed
from sbproxy.modelhost.core import lifecycle
from sbproxy.modelhost.core.lifecycle import (
    TABLE,
    AdmitWaiters,
    ArmKeepAlive,
    ArtifactVerified,
    AwaitPermits,
    CancelPreparation,
    CancelRestart,
    Command,
    DrainDeadlinePassed,
    DrainRequested,
    EngineExited,
    EngineReady,
    EngineStopped,
    Event,
    Failure,
    Generation,
    IllegalEvent,
    LaunchEngine,
    PermitsReturned,
    PreparationFailed,
    PrepareArtifact,
    RejectWaiters,
    ResetRequested,
    RestartDue,
    RestartPolicy,
    RevokePermits,
    ScheduleRestart,
    StartRequested,
    StopEngine,
    step,
)
from sbproxy.modelhost.core.status import ReplicaState

POLICY = RestartPolicy()
CRASH = ExitVerdict(ExitKind.CRASH, 1, "boom")
LAUNCH = EngineLaunchFailed("llama_cpp", "bad_file", "truncated")
SAMPLES: dict[type[Event], Event] = {
    StartRequested: StartRequested(),
    ArtifactVerified: ArtifactVerified(),
    PreparationFailed: PreparationFailed(TransportFailed("hub", "reset")),
    EngineReady: EngineReady(),
    EngineExited: EngineExited(CRASH, 10),
    DrainRequested: DrainRequested("operator"),
    PermitsReturned: PermitsReturned(),
    DrainDeadlinePassed: DrainDeadlinePassed(),
    EngineStopped: EngineStopped(),
    RestartDue: RestartDue(),
    ResetRequested: ResetRequested(),
}
STATES: tuple[ReplicaState, ...] = get_args(ReplicaState)


def play(now: Generation, *events: Event) -> tuple[Generation, list[Command]]:
    """The state after all events, and the commands of the last one."""
    commands: tuple[Command, ...] = ()
    for event in events:
        now, commands = step(now, event, POLICY)
    return now, list(commands)


READY = play(Generation(), StartRequested(), ArtifactVerified(), EngineReady())[0]


def test_samples_cover_every_event() -> None:
    assert set(SAMPLES) == set(get_args(lifecycle.Event))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", SAMPLES.values(), ids=lambda event: type(event).__name__)
def test_walk_of_the_table(state: ReplicaState, event: Event) -> None:
    failure = Failure("engine_unhealthy", "x") if state == "failed" else None
    now = Generation(state=state, failure=failure)
    if (state, type(event)) not in TABLE:
        with pytest.raises(IllegalEvent, match=f"{type(event).__name__} in state {state}"):
            step(now, event, POLICY)
        return
    after, commands = step(now, event, POLICY)
    assert after.state in STATES
    assert (after.failure is not None) or after.state != "failed"
    assert all(isinstance(command, get_args(lifecycle.Command)) for command in commands)


def test_every_state_is_reached_by_some_row() -> None:
    reached = set()
    for state, event in TABLE:
        failure = Failure("engine_unhealthy", "x") if state == "failed" else None
        reached.add(step(Generation(state=state, failure=failure), SAMPLES[event], POLICY)[0].state)
    assert reached == set(STATES)


def test_reset_is_refused_wherever_an_engine_may_be() -> None:
    assert {state for state in STATES if (state, ResetRequested) in TABLE} == {
        "configured",
        "cached",
        "stopped",
        "failed",
    }
    assert {state for state in STATES if Generation(state=state).resident} == {
        "assigned",
        "preparing",
        "ready",
        "draining",
    }


def test_life_of_a_good_engine() -> None:
    now, commands = play(Generation(), StartRequested())
    assert (now.state, commands) == ("assigned", [PrepareArtifact()])
    now, commands = play(now, ArtifactVerified())
    assert (now.state, commands) == ("preparing", [LaunchEngine()])
    now, commands = play(now, EngineReady())
    assert (now.state, commands) == ("ready", [AdmitWaiters(), ArmKeepAlive()])
    now, commands = play(now, DrainRequested("keep_alive"))
    assert (now.state, now.stop_cause) == ("draining", "keep_alive")
    assert commands == [RejectWaiters("draining"), AwaitPermits()]
    now, commands = play(now, PermitsReturned())
    assert commands == [StopEngine()]
    now, commands = play(now, EngineStopped())
    assert (now.state, now.stop_cause, commands) == ("stopped", "keep_alive", [RevokePermits()])
    now, commands = play(now, StartRequested())
    assert (now.state, now.stop_cause, commands) == ("assigned", None, [PrepareArtifact()])


def test_pulled_at_boot_and_not_started_is_cached() -> None:
    assert play(Generation(), ArtifactVerified())[0].state == "cached"


def test_a_drain_deadline_revokes_before_it_stops() -> None:
    assert play(READY, DrainRequested("operator"), DrainDeadlinePassed())[1] == [RevokePermits(), StopEngine()]


def test_a_second_stop_joins_the_first() -> None:
    now, commands = play(READY, DrainRequested("operator"), DrainRequested("shutdown"))
    assert (now.state, now.stop_cause, commands) == ("draining", "operator", [])


@pytest.mark.parametrize("events", [(StartRequested(),), (StartRequested(), ArtifactVerified())])
def test_stop_before_ready_cancels_the_preparation(events: tuple[Event, ...]) -> None:
    now, commands = play(Generation(), *events, DrainRequested("operator"))
    assert (now.state, commands) == ("draining", [RejectWaiters("draining"), CancelPreparation()])
    assert play(now, EngineStopped())[0].state == "stopped"


def test_an_engine_that_dies_while_draining_is_stopped() -> None:
    now, commands = play(READY, DrainRequested("operator"), EngineExited(CRASH, 10))
    assert (now.state, now.failure, commands) == ("stopped", None, [RevokePermits()])


def test_a_crash_of_a_ready_engine_schedules_one_restart() -> None:
    now, commands = play(READY, EngineExited(CRASH, 100_000))
    assert (now.state, now.restart_pending, now.quick_exits, now.stop_cause) == ("failed", True, 1, "crash")
    assert commands == [RejectWaiters("engine_unhealthy"), RevokePermits(), ScheduleRestart(500)]
    waiting, nothing = play(now, StartRequested())
    assert (waiting.state, nothing) == ("failed", [])
    started, commands = play(now, RestartDue())
    assert (started.state, started.restart_pending, commands) == ("assigned", False, [PrepareArtifact()])


def test_quick_exits_back_off_and_end_in_a_crash_loop() -> None:
    now, delays = READY, []
    for _ in range(4):
        now, commands = play(now, EngineExited(CRASH, 10))
        delays += [command.after_ms for command in commands if isinstance(command, ScheduleRestart)]
        now, _ = play(now, RestartDue(), ArtifactVerified(), EngineReady())
    assert delays == [500, 1000, 2000, 4000]
    now, commands = play(now, EngineExited(CRASH, 59_999))
    assert now.failure is not None
    assert (now.failure.reason_code, now.failure.hold, now.restart_pending) == ("crash_loop", "crash_loop", False)
    assert not any(isinstance(command, ScheduleRestart) for command in commands)
    assert play(now, StartRequested()) == (now, [RejectWaiters("crash_loop")])
    assert play(now, DrainRequested("operator"))[0].failure == now.failure
    fresh, commands = play(now, ResetRequested())
    assert (fresh, commands) == (Generation(), [CancelRestart()])


def test_a_stable_run_starts_the_count_anew() -> None:
    now = READY
    for _ in range(20):
        now, _ = play(now, EngineExited(CRASH, 60_000), RestartDue(), ArtifactVerified(), EngineReady())
    assert now.quick_exits == 1


@pytest.mark.parametrize("kind", list(lifecycle.DETERMINISTIC))
def test_an_exit_that_would_repeat_burns_no_retries(kind: ExitKind) -> None:
    now, commands = play(
        Generation(), StartRequested(), ArtifactVerified(), EngineExited(ExitVerdict(kind, 1, "x"), None, LAUNCH)
    )
    assert now.failure == Failure("engine_unhealthy", f"{kind}: x", "engine_unhealthy")
    assert commands == [RejectWaiters("engine_unhealthy", LAUNCH), RevokePermits()]
    assert play(now, StartRequested())[1] == [RejectWaiters("engine_unhealthy")]


def test_a_failed_preparation_heals_at_the_next_request() -> None:
    error = TransportFailed("hub", "reset")
    now, commands = play(Generation(), StartRequested(), PreparationFailed(error))
    assert now.failure == Failure("transport_failed", str(error))
    assert commands == [RejectWaiters("engine_unhealthy", error)]
    assert play(now, StartRequested())[1] == [PrepareArtifact()]


@given(st.lists(st.sampled_from(sorted(SAMPLES, key=lambda event: event.__name__)), max_size=60))
def test_no_order_of_legal_events_leaves_a_permit_open_to_a_dead_engine(kinds: list[type[Event]]) -> None:
    """Whenever the machine leaves ready, waiters are refused; whenever it comes to rest, permits are revoked."""
    now, opened = Generation(), False
    for kind in kinds:
        if (now.state, kind) not in TABLE:
            continue
        before, (now, commands) = now, step(now, SAMPLES[kind], POLICY)
        opened = (opened or AdmitWaiters() in commands) and RevokePermits() not in commands
        if before.state == "ready" and now.state != "ready":
            assert any(isinstance(command, RejectWaiters) for command in commands)
        if now.state in ("stopped", "failed", "configured"):
            assert not opened
        assert now.quick_exits <= POLICY.limit


def test_the_backoff_is_bounded() -> None:
    assert [POLICY.delay_ms(n) for n in (1, 2, 7, 8, 10_000)] == [500, 1000, 30_000, 30_000, 30_000]
