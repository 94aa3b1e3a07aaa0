"""Selectors: from the state to the text that widgets show. Every string from the wire is scrubbed here."""

from __future__ import annotations

from dataclasses import dataclass

from sbproxy.api.model_host import DeploymentStatus, Job
from sbproxy.observe.core.scrub import scrub
from sbproxy_tui.view.sentences import WAITING, next_step
from sbproxy_tui.view.state import ConsoleState

COLUMNS = ("deployment", "state", "memory", "active", "queued", "reason", "model", "engine")
"""What matters first: a narrow terminal cuts at the right."""
JOB_LINES = 8


@dataclass(frozen=True, slots=True)
class DeploymentRow:
    """One table row, a replica; ``key`` is unique in the table, actions are about the whole ``deployment``."""

    key: str
    deployment: str
    cells: tuple[str, ...]


def status_line(state: ConsoleState) -> str:
    """The one row on top: link, target, user, and the age of what is shown when it is not fresh."""
    return "  ".join(part for part in (_link_word(state), scrub(state.target, 60), scrub(state.user, 40)) if part)


def _link_word(state: ConsoleState) -> str:
    match state.link:
        case "connecting":
            waited = state.now - state.started_at
            return "CONNECTING" + (f" {waited:.0f}s" if waited >= 1 else "")
        case "live":
            return "LIVE"
        case "stale":
            return f"STALE {state.age_s or 0:.0f}s"
        case "offline":
            wait = max(0.0, (state.retry_at or state.now) - state.now)
            return f"OFFLINE retry {wait:.0f}s"
        case "signed_out":
            return "SIGNED OUT"


def deployment_rows(state: ConsoleState) -> tuple[DeploymentRow, ...]:
    if state.status is None:
        return ()
    return tuple(DeploymentRow(_key(row), row.deployment, _cells(row)) for row in state.status.deployments)


def _key(row: DeploymentStatus) -> str:
    """As `models ps` names it; an id has no slash."""
    return row.deployment if row.replica == 0 else f"{row.deployment}/{row.replica}"


def _cells(row: DeploymentStatus) -> tuple[str, ...]:
    model = row.model if row.variant is None else f"{row.model}:{row.variant}"
    words = (
        _key(row),
        row.state,
        mib(_memory_bytes(row)),
        f"{row.active_requests}/{row.max_concurrency}",
        f"{row.queued_requests}/{row.max_queue_depth}",
        row.reason_code or "-",
        model,
        row.engine or "-",
    )
    return tuple(scrub(word, 60) for word in words)


def _memory_bytes(row: DeploymentStatus) -> int | None:
    """What the engine really holds; before it runs, what it is planned to hold."""
    if row.resident_bytes is not None:
        return row.resident_bytes
    return row.memory.total_bytes if row.memory is not None else None


def detail(state: ConsoleState, key: str | None) -> str:
    """Why the chosen replica is as it is, and what to do about it; empty when there is nothing to say."""
    rows = state.status.deployments if state.status is not None else []
    row = next((row for row in rows if _key(row) == key), None)
    if row is None or not (row.last_error or row.reason_code):
        return ""
    step = WAITING if row.state in ("assigned", "preparing") else next_step(row.reason_code or "")
    parts = (row.reason_code, row.last_error, step and f"next: {step}")
    return scrub(" - ".join(part for part in parts if part), 400)


def stop_question(state: ConsoleState, deployment: str) -> str:
    """What the confirmation says: object, daemon, effect."""
    rows = state.status.deployments if state.status is not None else []
    running = sum(row.active_requests for row in rows if row.deployment == deployment)
    effect = f"{running} running requests will finish first." if running else "Nothing is running on it."
    return scrub(f"Stop {deployment} on {state.target}? {effect}", 300)


def empty_note(state: ConsoleState) -> str:
    """Why the table is empty: empty is not broken (design/console.md 4.3)."""
    if state.status is None:
        return "" if state.problem else "waiting for the first answer"
    if not state.status.deployments:
        return "no deployments are configured; add one under proxy.model_host.deployments in sb.yml, then reload"
    return ""


def job_lines(state: ConsoleState) -> tuple[str, ...]:
    """The newest jobs first, one line each."""
    return tuple(_job_line(job) for job in state.jobs[: -JOB_LINES - 1 : -1])


def _job_line(job: Job) -> str:
    done, total = job.progress.completed_bytes, job.progress.total_bytes
    amount = f"  {mib(done)} of {mib(total)}" if total else ""
    error = f"  {job.error}" if job.error else ""
    return scrub(f"{job.kind:<8} {job.subject:<32} {job.state}{amount}{error}", 200)


def mib(count: int | None) -> str:
    """Bytes for people: MiB below one GiB, GiB with one digit above."""
    if count is None:
        return "-"
    size = count / 2**20
    return f"{size:.0f} MiB" if size < 1024 else f"{size / 1024:.1f} GiB"


def notice(state: ConsoleState) -> str:
    """The line above the footer: the last message, or what keeps the link from being live."""
    if state.link in ("offline", "signed_out") and state.problem:
        return scrub(state.problem, 200)
    return scrub(state.message, 200)
