"""``sbproxy run``: from nothing to an answering model, and clean in every way of ending (contracts section 11)."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import openai
import psutil
import pytest

from support import real_parts
from support.daemon import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.real_engine, pytest.mark.timeout(300)]


def start(tmp_path: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SB_", "HF_"))}
    (tmp_path / "tmp").mkdir(exist_ok=True)
    with (tmp_path / "stderr").open("w") as stderr:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "sbproxy_cli",
                "run",
                "smollm2-135m-instruct",
                "--cache-dir",
                str(real_parts.cache_root()),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**environ, **more, "TMPDIR": str(tmp_path / "tmp")},
        )


def banner(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while not (lines and lines[-1].startswith("Try: ")):
        line = process.stdout.readline()
        assert line, (process.wait(10), lines)
        lines.append(line.rstrip("\n"))
    return lines


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run_answers_and_cleans_up(tmp_path: Path, ending: signal.Signals) -> None:
    port = free_port()
    process = start(tmp_path, "--port", str(port))
    try:
        lines = banner(process)
        assert lines[0] == f"smollm2-135m-instruct is ready on http://127.0.0.1:{port}"
        assert re.fullmatch(r"Admin: http://127\.0\.0\.1:\d+", lines[1])
        assert lines[2] == "Admin username: admin"
        assert re.fullmatch(r"Admin password: [0-9a-f]{64}", lines[3])
        assert lines[4] == f"export OPENAI_BASE_URL=http://127.0.0.1:{port}/v1"
        assert lines[5] == "export OPENAI_API_KEY=local"
        password = lines[3].rsplit(" ", 1)[1]
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="local", max_retries=0) as client:
            answer = client.chat.completions.create(
                model="smollm2-135m-instruct",
                temperature=0,
                max_tokens=24,
                messages=[{"role": "user", "content": "Complete the sentence: The capital of France is"}],
            )
        assert "Paris" in (answer.choices[0].message.content or "")
        ps = subprocess.run(
            [sys.executable, "-m", "sbproxy_cli", "models", "ps", "--admin-url", lines[1].split(" ", 1)[1]],
            env={**os.environ, "SB_ADMIN_PASSWORD": password},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert re.search(r"^local\s+ready\s", ps.stdout, re.MULTILINE), ps.stdout
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(ending)
        assert process.wait(60) == 0
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
    stderr = (tmp_path / "stderr").read_text()
    assert "apache-2.0" in stderr.lower()
    assert password not in stderr
    assert "Traceback" not in stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_second_run_needs_no_network(tmp_path: Path) -> None:
    """Engine and model are in the cache from the first run; pip is pointed at nowhere, proxies too."""
    port = free_port()
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "http_proxy": "http://127.0.0.1:9",
               "https_proxy": "http://127.0.0.1:9"}  # fmt: skip
    process = start(tmp_path, "--port", str(port), **nowhere)
    try:
        assert banner(process)[0].endswith(f":{port}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_port_in_use_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        started = time.monotonic()
        process = start(tmp_path, "--port", str(port))
        out, _ = process.communicate(timeout=60)
    assert process.returncode in (1, 2)
    assert out == ""
    stderr = (tmp_path / "stderr").read_text()
    assert str(port) in stderr
    assert "in use" in stderr
    assert time.monotonic() - started < 30
