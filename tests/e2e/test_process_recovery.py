"""Kills at any moment leave a state that the next start repairs (issue M1, what it must show 6)."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Daemon, daemon, tiny_catalog

pytestmark = pytest.mark.e2e


def engines_under(directory: Path) -> list[int]:
    """Live engine processes that serve a model below ``directory``."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "--api-key-file" in command and any(str(directory) in word for word in command):
            found.append(process.pid)
    return found


def wait_for(condition: object, timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_kill_9_of_the_daemon_leaves_no_orphan_and_the_next_start_serves(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, FAKE_ENGINE_CONFIG) as served:
        served.start()
        assert served.chat().status == 200
        first = served.status_row()
        assert engines_under(tmp_path) == [first["pid"]]
        served.kill()
        served.start()
        wait_for(lambda: engines_under(tmp_path) == [])
        assert served.status_row()["state"] in ("configured", "cached")
        assert served.chat().status == 200
        row = served.status_row()
        assert row["state"] == "ready"
        assert row["pid"] != first["pid"]
        assert engines_under(tmp_path) == [row["pid"]]
        assert served.stop() == 0
    assert engines_under(tmp_path) == []


def test_kill_9_of_the_engine_heals_at_the_next_request(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, FAKE_ENGINE_CONFIG) as served:
        served.start()
        assert served.chat().status == 200
        pid = served.status_row()["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: served.status_row()["pid"] != pid)
        assert served.chat(timeout_s=60).status == 200
        assert served.status_row()["state"] == "ready"
        assert len(engines_under(tmp_path)) == 1


def test_sigterm_drains_the_running_answer_then_exits_0(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, FAKE_ENGINE_CONFIG) as served:
        served.start()
        assert served.chat().status == 200
        fake_engine.set_mode(served.status_row()["port"], "slow_tokens")
        got: list[bytes] = []
        asking = threading.Thread(target=lambda: got.append(served.chat(stream=True).body))
        asking.start()
        wait_for(lambda: served.status_row()["active_requests"] == 1)
        assert served.process is not None
        served.process.send_signal(signal.SIGTERM)
        wait_for(lambda: served.ask("GET", "/readyz", admin=True, auth=False).status == 503)
        wait_for(lambda: refused(served))
        asking.join(30)
        assert got[0].rstrip().endswith(b"data: [DONE]"), "the running answer was cut"
        assert served.process.wait(30) == 0
        assert "Traceback" not in served.log
    assert engines_under(tmp_path) == []


def test_a_second_signal_cuts_what_still_runs(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, FAKE_ENGINE_CONFIG) as served:
        served.start()
        assert served.chat().status == 200
        fake_engine.set_mode(served.status_row()["port"], "stream_until_cancelled")
        asking = threading.Thread(target=lambda: leave(served))
        asking.start()
        wait_for(lambda: served.status_row()["active_requests"] == 1)
        assert served.process is not None
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert served.process.poll() is None, "the grace time is not over"
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(15) == 0
        asking.join(10)
    assert engines_under(tmp_path) == []


def refused(served: Daemon) -> bool:
    """Whether the gateway takes no connection any more."""
    try:
        served.ask("GET", "/v1/models")
    except OSError:
        return True
    return False


def leave(served: Daemon) -> None:
    """Read until the stream is cut."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        served.chat(stream=True)


def test_a_warm_deployment_is_pulled_and_started_before_the_first_request(tmp_path: Path) -> None:
    """``warm`` needs its artifact at the start, also under ``pull: on_demand``; answers come at once afterwards."""
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, FAKE_ENGINE_CONFIG.replace("tiny-model, ", "tiny-model, warm: true, ")) as served:
        served.start()
        assert served.status_row()["state"] == "ready"
        jobs = served.ask("GET", "/admin/model-host/jobs", admin=True).json()["jobs"]
        assert [(job["kind"], job["state"]) for job in jobs if job["kind"] == "pull"] == [("pull", "ready")]
        assert served.ask("GET", "/admin/model-host/files", admin=True).json()["artifacts"][0]["resident"] is True


def test_sigterm_while_the_first_engine_starts_ends_at_once(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path, ready_after_probes=10**9)
    warm = FAKE_ENGINE_CONFIG.replace("max_concurrency: 4", "max_concurrency: 4, warm: true")
    assert warm != FAKE_ENGINE_CONFIG
    with daemon(tmp_path, warm) as served:
        served.start(wait=False)
        wait_for(lambda: len(engines_under(tmp_path)) == 1)
        row = served.status_row()
        assert (row["state"], row["generation"]) == ("preparing", 1)
        parts = served.ask("GET", "/readyz", admin=True, auth=False).body
        assert b"not_configured" not in parts
        asked = time.monotonic()
        served.stop(10)
        assert time.monotonic() - asked < 4
    assert engines_under(tmp_path) == []


@pytest.mark.parametrize("rollout", ["rolling", "recreate"])
def test_sigterm_while_a_reload_starts_its_engine_ends_in_time(tmp_path: Path, rollout: str) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    shape = f"max_concurrency: 4, warm: true, rollout: {rollout}"
    with daemon(tmp_path, FAKE_ENGINE_CONFIG.replace("max_concurrency: 4", shape)) as served:
        served.start()
        first = engines_under(tmp_path)
        fake_engine.configure(tmp_path, ready_after_probes=10**9)
        served.config.write_text(served.config.read_text().replace("max_concurrency: 4", "max_concurrency: 3"))
        assert served.process is not None
        served.process.send_signal(signal.SIGHUP)
        wait_for(lambda: set(engines_under(tmp_path)) - set(first) != set())
        asked = time.monotonic()
        assert served.stop(15) == 0
        assert time.monotonic() - asked < 5
    assert engines_under(tmp_path) == []
