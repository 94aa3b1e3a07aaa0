"""The console's pure half: the reducer's link states and what selectors make of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbproxy.api.model_host import Progress
from sbproxy_tui.view import select
from sbproxy_tui.view.events import ActionFailed, ActionSucceeded, FetchFailed, StatusArrived, Ticked
from sbproxy_tui.view.state import ConsoleState, reduce
from support.console_data import job, row, status

START = ConsoleState(target="http://127.0.0.1:9090", user="admin", started_at=100.0, now=100.0)


LIVE = reduce(START, StatusArrived(status(row()), (), 101.0))
TRANSPORT = FetchFailed("transport", "connection refused", 2.0, 102.0)


def test_the_links_life() -> None:
    assert select.status_line(reduce(START, Ticked(103.4))).startswith("CONNECTING 3s")
    assert LIVE.link == "live"
    assert reduce(LIVE, Ticked(106.9)).link == "live"
    stale = reduce(LIVE, Ticked(143.0))
    assert select.status_line(stale).startswith("STALE 42s")
    assert stale.may_act
    once = reduce(LIVE, TRANSPORT)
    assert once.link == "live", "one missed poll is no outage"
    gone = reduce(once, TRANSPORT)
    assert select.status_line(gone) == "OFFLINE retry 2s  http://127.0.0.1:9090  admin"
    assert not gone.may_act
    assert select.deployment_rows(gone) == select.deployment_rows(LIVE), "the last state stays readable"
    assert select.notice(gone) == "connection refused"
    back = reduce(gone, StatusArrived(status(row()), (), 110.0))
    assert (back.link, back.failures, back.problem) == ("live", 0, None)


def test_a_first_failure_before_any_answer_is_offline_at_once() -> None:
    assert reduce(START, TRANSPORT).link == "offline"


def test_signed_out_keeps_the_data_and_forbids_actions() -> None:
    out = reduce(LIVE, FetchFailed("signed_out", "set SB_ADMIN_PASSWORD", 30.0, 102.0))
    assert select.status_line(out).startswith("SIGNED OUT")
    assert select.deployment_rows(out)
    assert not out.may_act


def test_messages() -> None:
    assert select.notice(reduce(LIVE, ActionSucceeded("load smol: accepted"))) == "load smol: accepted"
    failed = reduce(LIVE, ActionFailed("stop smol: draining"))
    assert (failed.message, failed.message_is_error) == ("stop smol: draining", True)


def test_a_row() -> None:
    assert dict(zip(select.COLUMNS, select.deployment_rows(LIVE)[0].cells, strict=True)) == {
        "deployment": "smol", "state": "ready", "memory": "300 MiB", "active": "1/2", "queued": "0/8",
        "reason": "-", "model": "smollm2:q4_1", "engine": "llama_cpp",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("count", "text"), [(None, "-"), (0, "0 MiB"), (1 << 20, "1 MiB"), (1 << 30, "1.0 GiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes(count: int | None, text: str) -> None:
    assert select.mib(count) == text


def test_jobs_show_bytes_only_when_a_total_is_known() -> None:
    shown = replace(LIVE, jobs=(job(), job(kind="load", state="failed", error="crash_loop", progress=Progress(
        completed_bytes=0, total_bytes=None, current_file=None))))  # fmt: skip
    second, first = select.job_lines(shown)
    assert first.split() == ["pull", "smol", "downloading", "10", "MiB", "of", "20", "MiB"]
    assert second.split() == ["load", "smol", "failed", "crash_loop"]


def test_empty_is_not_broken() -> None:
    assert select.empty_note(START) == "waiting for the first answer"
    assert "proxy.model_host.deployments" in select.empty_note(reduce(START, StatusArrived(status(), (), 101.0)))
    assert select.empty_note(LIVE) == ""


def test_the_question_before_a_stop_names_object_daemon_and_effect() -> None:
    question = select.stop_question(LIVE, "smol")
    assert question == "Stop smol on http://127.0.0.1:9090? 1 running requests will finish first."


def test_the_detail_says_why_and_what_next() -> None:
    state = replace(LIVE, status=status(row(state="failed", reason_code="crash_loop", last_error="exit 1: bad thing")))
    text = select.detail(state, "smol")
    assert text.startswith("crash_loop - exit 1: bad thing - next: ")
    assert "clear with c" in text
    assert select.detail(LIVE, "smol") == ""
    assert select.detail(state, None) == ""


def test_replicas_have_a_row_and_a_reason_each() -> None:
    waiting = row(
        replica=1, state="preparing", reason_code="insufficient_capacity", last_error="it is 1 of 1 that wait"
    )
    state = replace(LIVE, status=status(row(), waiting))
    rows = select.deployment_rows(state)
    assert [(each.key, each.deployment, each.cells[0]) for each in rows] == [
        ("smol", "smol", "smol"), ("smol/1", "smol", "smol/1"),
    ]  # fmt: skip
    assert select.detail(state, "smol") == ""
    assert select.detail(state, "smol/1") == (
        "insufficient_capacity - it is 1 of 1 that wait"
        " - next: wait, it starts as soon as there is room; or stop what holds it"
    )


HOSTILE = "evil\x1b]0;pwned\x07\x1b[31mred\x9b2J\u202egnp"


def test_no_control_byte_from_the_wire_reaches_a_widget() -> None:
    hostile = row(
        deployment=HOSTILE, model=HOSTILE, variant=HOSTILE, reason_code=HOSTILE, engine=HOSTILE, state=HOSTILE
    )
    state = replace(
        reduce(START, StatusArrived(status(hostile), (job(subject=HOSTILE, error=HOSTILE),), 101.0)),
        target=HOSTILE, user=HOSTILE, problem=HOSTILE, message=HOSTILE,
    )  # fmt: skip
    offline = replace(state, link="offline")
    shown = [
        select.status_line(state), select.notice(state), select.notice(offline), *select.job_lines(state),
        *select.deployment_rows(state)[0].cells, select.stop_question(state, HOSTILE), select.detail(state, HOSTILE),
        select.empty_note(replace(START, problem=HOSTILE)),
    ]  # fmt: skip
    for text in shown:
        assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 or char == "\u202e" for char in text), repr(text)
