"""Reload is one transaction, by route, SIGHUP and file watcher (issue M1, "Admin API")."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Daemon, daemon, tiny_catalog

pytestmark = pytest.mark.e2e


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Daemon]:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, FAKE_ENGINE_CONFIG) as handle:
        handle.start()
        assert handle.chat().status == 200
        yield handle


def edit(served: Daemon, old: str, new: str) -> None:
    """Replace by rename, as editors do."""
    text = served.config.read_text()
    assert old in text
    draft = served.config.with_name("sb.yml.new")
    draft.write_text(text.replace(old, new))
    draft.replace(served.config)


def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def reload(served: Daemon) -> tuple[int, dict[str, object]]:
    answer = served.ask("POST", "/admin/reload", admin=True)
    return answer.status, answer.json()


BROKEN = [
    ("default_model: tiny", "default_modle: tiny", "default_model"),
    ("model: tiny-model", "model: tiny-modell", "tiny-model"),
    ("max_concurrency: 4", "max_concurrency: 0", "max_concurrency"),
    ("http_bind_port: ", "http_bind_port: 1", "http_bind_port"),
]


@pytest.mark.parametrize(("old", "new", "named"), BROKEN, ids=["unknown-key", "unknown-model", "range", "restart"])
def test_an_invalid_candidate_changes_nothing(served: Daemon, old: str, new: str, named: str) -> None:
    served.process and served.process.send_signal(0)
    before = served.status_row()
    edit(served, old, new)
    status, body = reload(served)
    assert status == 400, body
    assert named in str(body["error"])
    assert str(served.directory) not in str(body["error"]), "the folder is scrubbed from the answer"
    after = served.status_row()
    assert (after["pid"], after["generation"], after["state"]) == (before["pid"], before["generation"], "ready")
    assert served.chat().status == 200
    assert served.ask("GET", "/admin/drift", admin=True).json()["drift"] is True


def test_an_unchanged_generation_keeps_its_engine_and_a_new_route_is_live(served: Daemon) -> None:
    before = served.status_row()
    edit(served, 'models: [tiny, "org/tiny:q4#1"]', 'models: [tiny, "org/tiny:q4#1", extra]')
    status, body = reload(served)
    assert status == 200, body
    assert body["fully_applied"] is True
    after = served.status_row()
    assert (after["pid"], after["generation"]) == (before["pid"], before["generation"])
    assert served.chat("extra").status == 200
    assert served.ask("GET", "/admin/drift", admin=True).json()["drift"] is False


def test_a_changed_deployment_gets_a_new_generation(served: Daemon) -> None:
    before = served.status_row()
    edit(served, "max_concurrency: 4", "max_concurrency: 2")
    assert reload(served)[0] == 200
    assert served.chat().status == 200
    rows = [
        row
        for row in served.ask("GET", "/admin/model-host/status", admin=True).json()["deployments"]
        if row["state"] == "ready"
    ]
    assert [row["generation"] for row in rows] == [before["generation"] + 1]
    assert rows[0]["max_concurrency"] == 2


def test_answers_in_flight_finish_across_a_reload_that_removes_their_route(served: Daemon) -> None:
    fake_engine.set_mode(served.status_row()["port"], "slow_tokens")
    got: list[bytes] = []
    asking = threading.Thread(target=lambda: got.append(served.chat(stream=True).body))
    asking.start()
    until(lambda: served.status_row()["active_requests"] == 1)
    edit(served, "models: [tiny, ", "models: [renamed, ")
    edit(served, "default_model: tiny", "default_model: renamed")
    assert reload(served)[0] == 200
    assert served.chat("tiny").status == 404
    asking.join(30)
    assert got[0].rstrip().endswith(b"data: [DONE]")
    assert b'"tiny"' in got[0]


def test_sighup_reloads(served: Daemon) -> None:
    assert served.process is not None
    edit(served, "default_model: tiny", "default_model: tiny  # touched")
    served.process.send_signal(signal.SIGHUP)
    until(lambda: served.ask("GET", "/admin/drift", admin=True).json()["drift"] is False)
    assert "config_reloaded" in served.log
    assert served.process.poll() is None


def test_the_file_watcher_reloads_what_changed_and_nothing_else(served: Daemon) -> None:
    edit(served, 'models: [tiny, "org/tiny:q4#1"]', "models: [tiny, watched]")
    until(lambda: served.chat("watched").status == 200)
    revision = served.ask("GET", "/admin/drift", admin=True).json()["loaded_revision"]
    served.config.write_bytes(served.config.read_bytes())
    time.sleep(1)
    assert served.log.count("config_reloaded") == 1
    assert served.ask("GET", "/admin/drift", admin=True).json()["loaded_revision"] == revision


def test_a_removed_deployment_is_drained_and_stopped(served: Daemon) -> None:
    edit(
        served,
        "      tiny: {model: tiny-model, max_concurrency: 4, max_queue_depth: 64, queue_timeout_ms: 20000}",
        "      other: {model: tiny-model}",
    )
    edit(served, "deployment: tiny", "deployment: other")
    assert reload(served)[0] == 200
    until(
        lambda: (
            [
                row["deployment"]
                for row in served.ask("GET", "/admin/model-host/status", admin=True).json()["deployments"]
            ]
            == ["other"]
        )
    )
    assert served.chat().status == 200
