"""Job streams over restarts of a real daemon, cancelling, a stop during pip's download, and the value report."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sbproxy.observe.value_ledger import FLUSH_S
from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, PASSWORD, Daemon, daemon, tiny_catalog
from support.hub import Hub

pytestmark = pytest.mark.e2e

JOBS = "/admin/model-host/jobs"
PRICED = FAKE_ENGINE_CONFIG.replace(
    "queue_timeout_ms: 20000}",
    "queue_timeout_ms: 20000,\n"
    "        reference: {model: gpt-x, prompt_micros_per_mtok: 1000000, completion_micros_per_mtok: 2000000}}",
)
assert PRICED != FAKE_ENGINE_CONFIG


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Daemon]:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, PRICED) as handle:
        yield handle


def events(handle: Daemon, path: str, after: object, count: int) -> list[tuple[str, str, dict[str, Any]]]:
    """So many (event, id, data) of a stream, or all if it ends before."""
    connection = http.client.HTTPConnection("127.0.0.1", handle.admin_port, timeout=10)
    credentials = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    headers = {"Last-Event-ID": str(after), "Authorization": f"Basic {credentials}"}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200
    seen: list[tuple[str, str, dict[str, Any]]] = []
    fields: dict[str, str] = {}
    while len(seen) < count and (line := answer.readline().decode()):
        if line == "\n":
            if "data" in fields:
                seen.append((fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"])))
            fields = {}
        else:
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value
    connection.close()
    return seen


def load(handle: Daemon) -> str:
    answer = handle.ask("POST", "/admin/model-host/load", {"deployment": "tiny"}, admin=True)
    assert answer.status == 202
    job: str = answer.json()["job_id"]
    return job


def job(handle: Daemon, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = handle.ask("GET", f"{JOBS}/{name}", admin=True).json()["job"]
    return shown


def test_a_stream_goes_on_over_a_restart_without_losing_a_job(made: Daemon) -> None:
    made.start()
    first = load(made)
    made.wait_state("ready")
    seen = events(made, f"{JOBS}/{first}/stream", 0, 9)
    assert seen[-1][2]["state"] == "ready"
    last = int(seen[-1][1])
    assert made.stop() == 0
    made.start()
    second = load(made)
    made.wait_state("ready")
    all_jobs = events(made, f"{JOBS}/stream", 0, 5)
    kind, number, gap = all_jobs[0]
    assert (kind, number) == ("gap", "0")
    assert gap["from"] == 1
    assert "missed" not in gap
    stored = [(data["id"], data["state"]) for _, number, data in all_jobs[1:] if int(number) <= gap["to"]]
    assert (first, "ready") in stored
    numbers = [int(number) for _, number, _ in all_jobs]
    assert numbers == sorted(set(numbers))
    one = events(made, f"{JOBS}/{second}/stream", last, 9)
    assert one[-1][2]["state"] == "ready"
    assert int(one[-1][1]) > gap["to"]
    assert made.stop() == 0


def test_a_slow_pull_is_cancelled_and_the_daemon_that_is_killed_in_one_says_interrupted(tmp_path: Path) -> None:
    tiny_catalog(tmp_path, source="hf:Org/Repo")
    fake_engine.install(tmp_path)
    data = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "tiny.gguf").unlink()
    with Hub({"Org/Repo/tiny.gguf": data}) as hub:
        hub.fault("drip", chunk=10, pause=0.2, times=9)
        with daemon(tmp_path, FAKE_ENGINE_CONFIG, HF_ENDPOINT=hub.url) as handle:
            handle.start()
            name = load(handle)
            pull = wait_for_pull(handle)
            answer = handle.ask("POST", f"{JOBS}/{pull}/cancel", admin=True)
            assert answer.status == 202
            assert ended(handle, pull)["error_code"] == "cancelled"
            assert ended(handle, name)["error_code"] == "pull_cancelled"
            assert handle.ask("POST", f"{JOBS}/{pull}/cancel", admin=True).status == 409
            load(handle)
            pull = wait_for_pull(handle)
            handle.kill()
            handle.start()
            assert job(handle, pull)["error_code"] == "interrupted"


def wait_for_pull(handle: Daemon) -> str:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        jobs = handle.ask("GET", JOBS, admin=True).json()["jobs"]
        pulls = [each["id"] for each in jobs if each["kind"] == "pull" and each["state"] == "downloading"]
        if pulls:
            return str(pulls[-1])
        time.sleep(0.05)
    raise AssertionError(handle.log)


def ended(handle: Daemon, name: str) -> dict[str, Any]:
    deadline = time.monotonic() + 15
    while (shown := job(handle, name))["terminal_at_ms"] is None:
        assert time.monotonic() < deadline, handle.log
        time.sleep(0.05)
    return shown


def test_a_stop_during_the_download_of_an_engine_is_quick_and_leaves_no_pip(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    config = FAKE_ENGINE_CONFIG.replace('    engines: {llama_cpp: {path: "{dir}/llama-server"}}\n', "")
    assert config != FAKE_ENGINE_CONFIG
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        environ = {"PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "9", "PATH": "/usr/bin:/bin"}
        with daemon(tmp_path, config, **environ) as handle:
            handle.start()
            load(handle)
            deadline = time.monotonic() + 20
            while not pips(tmp_path):
                assert time.monotonic() < deadline, handle.log
                time.sleep(0.05)
            started = time.monotonic()
            assert handle.stop() == 0
            assert time.monotonic() - started < 5
            assert pips(tmp_path) == []
            handle.start()
            jobs = handle.ask("GET", JOBS, admin=True).json()["jobs"]
            [provision] = [each for each in jobs if each["kind"] == "provision"]
            assert (provision["state"], provision["error_code"]) in [("failed", "cancelled"), ("failed", "interrupted")]


def pips(directory: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any("pip" in word for word in process.info["cmdline"] or [])
        and any(str(directory) in word for word in process.info["cmdline"] or [])
    ]


def value(handle: Daemon) -> dict[str, Any]:
    report: dict[str, Any] = handle.ask("GET", "/admin/model-host/value", admin=True).json()
    return report


def test_the_value_of_local_completions_outlives_the_daemon(made: Daemon) -> None:
    made.start()
    assert value(made)["models"] == []
    tokens = [0, 0]
    for _ in range(3):
        answer = made.chat()
        assert answer.status == 200
        usage = answer.json()["usage"]
        tokens[0] += usage["prompt_tokens"]
        tokens[1] += usage["completion_tokens"]
    assert made.chat("no-such-model").status == 404
    expected = {
        "model": "tiny",
        "local_completions": 3,
        "cloud_completions": 0,
        "saved_micros": tokens[0] + 2 * tokens[1],
        "cloud_spent_micros": 0,
    }
    assert value(made)["models"] == [expected]
    assert made.stop() == 0
    made.start()
    deadline = time.monotonic() + 5
    while value(made)["models"] != [expected]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # A killed daemon loses what came since the last write, and nothing else.
    assert made.chat().status == 200
    time.sleep(FLUSH_S + 1)
    made.kill()
    made.start()
    deadline = time.monotonic() + 5
    while not value(made)["models"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert value(made)["total_local_completions"] == 4
