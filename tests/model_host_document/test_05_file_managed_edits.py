# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "File-managed edits": the file is edited by its owner, and applied by a reload."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Daemon
from support.document_world import HOST, act, admin, edit, reload, until

pytestmark = pytest.mark.e2e

CONFIG = FAKE_ENGINE_CONFIG.replace(
    "queue_timeout_ms: 20000}", "queue_timeout_ms: 20000, rollout: recreate, warm: true}"
)

PROVED_ELSEWHERE = {
    "apply sends the file to the daemon, which takes it into use": "tests/cli/test_cli_apply.py::test_apply_replaces_the_file_and_what_runs",
    "a refused document changes neither file nor runtime": "tests/cli/test_cli_apply.py::test_a_refused_document_changes_neither_file_nor_runtime",
    "the watcher takes the same way": "tests/e2e/test_reload.py::test_the_file_watcher_reloads_what_changed_and_nothing_else",
    "what does not parse or validate is refused before anything is published": "tests/e2e/test_reload.py::test_an_invalid_candidate_changes_nothing",
    "a recreate that fails puts the old generation back": "tests/modelhost/test_modelhost_reload.py::test_recreate_that_fails_restores_the_old_generation",
    "so does one that is cancelled half-way": "tests/modelhost/test_modelhost_races.py::test_a_recreate_that_is_cancelled_while_the_old_one_drains_restores_it",
}
NOT_ON_ONE_MACHINE = {"a page that disables Add, Edit and Remove and says where to edit": "M4"}


@pytest.fixture
def good(served: Daemon) -> Iterator[Daemon]:
    """With file and engine as at the start, before and after."""
    text = served.config.read_text()
    yield served
    fake_engine.configure(served.directory)
    served.config.write_text(text)
    assert reload(served).status == 200
    served.wait_state("ready")


def test_no_route_of_model_management_writes_the_file(good: Daemon) -> None:
    """Lifecycle actions work on what the file defines, persistent edits are refused, and sb.yml stays byte for byte."""
    before = good.config.read_bytes()
    for action in ("stop", "load", "drain", "load", "evict", "load"):
        assert act(good, action)["state"] == "ready", action
    put = {"expected_revision": None, "deployments": {"other": {"model": "tiny-model", "cold_start": "wait"}}}
    answer = admin(good, "PUT", f"{HOST}/deployments", put)
    assert answer.status == 403
    assert "sb.yml" in answer.json()["error"]
    assert good.config.read_bytes() == before


@pytest.mark.parametrize("way", ["route", "signal"])
def test_an_edit_is_taken_by_the_ways_to_reload(good: Daemon, way: str) -> None:
    """After saving, the authenticated route and SIGHUP both apply the file, through one transaction."""
    edit(good, "max_queue_depth: 64", f"max_queue_depth: {7 if way == 'route' else 8}")
    if way == "route":
        assert good.ask("POST", "/admin/reload", admin=True, auth=False).status == 401
        assert reload(good).status == 200
    else:
        assert good.process is not None
        good.process.send_signal(signal.SIGHUP)
    until(lambda: [row["max_queue_depth"] for row in ready(good)] == [7 if way == "route" else 8])


def ready(handle: Daemon) -> list[dict[str, object]]:
    found = admin(handle, "GET", f"{HOST}/status").json()["deployments"]
    return [row for row in found if row["state"] == "ready"]


def test_a_restore_that_fails_too_is_told_and_another_reload_mends_it(good: Daemon) -> None:
    """When neither the new nor the stopped old generation comes up, status and log say so; once what was wrong is mended, another reload serves again."""
    fake_engine.configure(good.directory, mode="bad_file")
    edit(good, "max_concurrency: 4", "max_concurrency: 3")
    answer = reload(good)
    assert (answer.status, answer.json()["code"]) == (500, "engine_launch_failed")
    assert not ready(good)
    row = good.status_row()
    assert (row["state"], row["reason_code"], row["max_concurrency"]) == ("failed", "engine_unhealthy", 4)
    assert row["last_error"].startswith("bad_file: ")
    assert f"tiny could not be restored to generation {row['generation']}" in good.log
    assert good.chat().status == 503
    fake_engine.configure(good.directory)
    assert reload(good).status == 200
    assert good.wait_state("ready")["max_concurrency"] == 3
    assert good.chat().status == 200
