"""Everything the console knows, as one frozen value, and how an event changes it (design/console.md 4.2, 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sbproxy.api.model_host import HostStatus, Job
from sbproxy_tui.view.events import ActionFailed, ActionSucceeded, ConsoleEvent, FetchFailed, StatusArrived, Ticked

Link = Literal["connecting", "live", "stale", "offline", "signed_out"]

STATUS_INTERVAL_S = 2.0
STALE_AFTER_S = 3 * STATUS_INTERVAL_S
OFFLINE_AFTER_FAILURES = 2


@dataclass(frozen=True, slots=True)
class ConsoleState:
    """``status`` and ``jobs`` are the last that came; they stay readable whatever happens to the link."""

    target: str
    user: str
    link: Link = "connecting"
    started_at: float = 0.0
    now: float = 0.0
    last_success_at: float | None = None
    failures: int = 0
    retry_at: float | None = None
    problem: str | None = None
    status: HostStatus | None = None
    jobs: tuple[Job, ...] = ()
    message: str = ""
    message_is_error: bool = False

    @property
    def age_s(self) -> float | None:
        """Seconds since the last answer; None before the first."""
        return None if self.last_success_at is None else max(0.0, self.now - self.last_success_at)

    @property
    def may_act(self) -> bool:
        return self.link in ("live", "stale")


def reduce(state: ConsoleState, event: ConsoleEvent) -> ConsoleState:
    """The state after ``event``. Pure and total."""
    match event:
        case StatusArrived(status, jobs, at):
            return replace(
                state,
                link="live",
                now=at,
                last_success_at=at,
                failures=0,
                retry_at=None,
                problem=None,
                status=status,
                jobs=jobs,
            )
        case FetchFailed(kind, detail, retry_in_s, at):
            failures = state.failures + 1
            return replace(
                state,
                link=_link_after_failure(state, kind, failures),
                now=at,
                failures=failures,
                retry_at=at + retry_in_s,
                problem=detail,
            )
        case ActionSucceeded(text):
            return replace(state, message=text, message_is_error=False)
        case ActionFailed(text):
            return replace(state, message=text, message_is_error=True)
        case Ticked(at):
            aged = state.last_success_at is not None and at - state.last_success_at > STALE_AFTER_S
            return replace(state, now=at, link="stale" if state.link == "live" and aged else state.link)


def _link_after_failure(state: ConsoleState, kind: str, failures: int) -> Link:
    if kind == "signed_out":
        return "signed_out"
    if failures >= OFFLINE_AFTER_FAILURES or state.status is None:
        return "offline"
    return state.link
