"""The generation machine: a walk over its whole table, playbooks of lives, and the limits of restarts."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.engines.core.model import ExitKind, ExitVerdict
from sbproxy.errors.artifacts import TransportFailed
from sbproxy.errors.engines import EngineLaunchFailed
from sbproxy.modelhost.core import events, lifecycle
from sbproxy.modelhost.core.events import (
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
    cause_of,
)
from sbproxy.modelhost.core.lifecycle import (
    TABLE,
    AdmitWaiters,
    ArmKeepAlive,
    AwaitPermits,
    CancelPreparation,
    CancelRestart,
    Command,
    Failure,
    Generation,
    IllegalEvent,
    LaunchEngine,
    PrepareArtifact,
    RejectWaiters,
    RestartPolicy,
    RevokePermits,
    ScheduleRestart,
    StopEngine,
    step,
)
from sbproxy.modelhost.core.status import ReplicaState

POLICY = RestartPolicy()
CRASH = ExitVerdict(ExitKind.CRASH, 1, "boom")
HUNG = ExitVerdict(ExitKind.UNRESPONSIVE, None, "no answer")
LAUNCH = EngineLaunchFailed("llama_cpp", "bad_file", "truncated")
SAMPLES: dict[type[Event], Event] = {
    StartRequested: StartRequested(),
    ArtifactVerified: ArtifactVerified(),
    PreparationFailed: PreparationFailed(TransportFailed("hub", "reset")),
    EngineReady: EngineReady(),
    EngineExited: EngineExited(CRASH, 10),
    EngineUnresponsive: EngineUnresponsive(HUNG, 10),
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
    assert set(SAMPLES) == set(get_args(events.Event))


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
    assert commands == [AwaitPermits()], "whoever comes meanwhile waits for the next start"
    now, commands = play(now, PermitsReturned())
    assert commands == [StopEngine()]
    now, commands = play(now, EngineStopped())
    assert (now.state, now.stop_cause, commands) == ("stopped", "keep_alive", [RevokePermits()])
    now, commands = play(now, StartRequested())
    assert (now.state, now.stop_cause, commands) == ("assigned", "keep_alive", [PrepareArtifact()])
    assert play(now, ArtifactVerified())[0].stop_cause == "keep_alive"
    assert play(now, ArtifactVerified(), EngineReady())[0].stop_cause is None


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


def test_a_hung_engine_is_ended_first_and_then_treated_as_crashed() -> None:
    now, commands = play(READY, EngineUnresponsive(HUNG, 100_000))
    assert (now.state, now.stop_cause, now.resident) == ("draining", "unresponsive", True)
    assert commands == [RejectWaiters("engine_unhealthy"), RevokePermits(), StopEngine()]
    assert play(now, StartRequested())[1] == [RejectWaiters("engine_unhealthy")]
    now, commands = play(now, EngineStopped())
    assert now.failure == Failure("engine_unhealthy", "unresponsive: no answer")
    assert (now.state, now.restart_pending, now.stop_cause, now.lost) == ("failed", True, "unresponsive", None)
    assert commands == [RejectWaiters("engine_unhealthy"), RevokePermits(), ScheduleRestart(500)]


def test_an_engine_that_keeps_hanging_ends_in_a_crash_loop() -> None:
    now = READY
    lost = (EngineUnresponsive(HUNG, 10), EngineStopped())
    for _ in range(4):
        now, _ = play(now, *lost, RestartDue(), ArtifactVerified(), EngineReady())
    now, commands = play(now, *lost)
    assert now.failure is not None
    assert (now.state, now.failure.hold) == ("failed", "crash_loop")
    assert not any(isinstance(command, ScheduleRestart) for command in commands)


def test_a_stop_of_a_hung_engine_wants_no_restart() -> None:
    now, commands = play(READY, EngineUnresponsive(HUNG, 10), DrainRequested("operator"))
    assert (now.state, now.stop_cause, commands) == ("draining", "operator", [])
    now, commands = play(now, EngineStopped())
    assert (now.state, now.failure, now.stop_cause, commands) == ("stopped", None, "operator", [RevokePermits()])


def test_an_engine_that_hangs_while_it_drains_is_not_waited_for() -> None:
    now, commands = play(READY, DrainRequested("reload"), EngineUnresponsive(HUNG, 10))
    assert (now.state, now.stop_cause, commands) == ("draining", "reload", [RevokePermits(), StopEngine()])
    assert play(now, EngineStopped())[0].state == "stopped"


def test_the_log_names_a_cause_for_every_event() -> None:
    causes = {type(event): cause_of(event) for event in SAMPLES.values()}
    assert causes == {
        StartRequested: "request", ArtifactVerified: "artifact_verified", PreparationFailed: "transport_failed",
        EngineReady: "engine_ready", EngineExited: "crash", EngineUnresponsive: "unresponsive",
        DrainRequested: "operator", PermitsReturned: "permits_returned", DrainDeadlinePassed: "drain_deadline",
        EngineStopped: "engine_stopped", RestartDue: "restart", ResetRequested: "reset",
    }  # fmt: skip


@pytest.mark.parametrize("verdict", [CRASH, ExitVerdict(ExitKind.BAD_FILE, 1, "x")])
def test_why_an_engine_went_is_told_until_the_next_one_is_ready(verdict: ExitVerdict) -> None:
    failed, unpulled = EngineExited(verdict, 10), PreparationFailed(TransportFailed("hub", "reset"))
    now, _ = play(READY, failed, ResetRequested(), StartRequested(), unpulled)
    assert (now.state, now.stop_cause) == ("failed", "crash")
    assert play(now, StartRequested(), ArtifactVerified(), EngineReady())[0].stop_cause is None


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
    assert (fresh, commands) == (Generation(stop_cause="crash"), [CancelRestart()])


def test_a_reset_during_a_backoff_starts_at_once_with_a_clean_count() -> None:
    now, commands = play(READY, EngineExited(CRASH, 10), ResetRequested())
    assert commands == [PrepareArtifact()]
    assert now == Generation("assigned", stop_cause="crash")


def test_a_stable_run_starts_the_count_anew() -> None:
    now = READY
    for _ in range(20):
        now, _ = play(now, EngineExited(CRASH, 60_000), RestartDue(), ArtifactVerified(), EngineReady())
    assert now.quick_exits == 1


@pytest.mark.parametrize("kind", sorted(lifecycle.DETERMINISTIC))
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
