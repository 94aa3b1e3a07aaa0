"""Ctrl-C and SIGTERM in the middle of a pull keep what came, and the next pull finishes it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sbproxy.modelhost.job_store import SqliteJobStore
from support.cli import environment
from support.daemon import tiny_catalog
from support.hub import Hub

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_pull_that_is_interrupted_resumes(tmp_path: Path, ending: signal.Signals, code: int) -> None:
    catalog = tiny_catalog(tmp_path)
    data = (tmp_path / "tiny.gguf").read_bytes()
    cache = tmp_path / "cache"
    with Hub({"Org/Repo/tiny.gguf": data}) as hub:
        url = hub.file_url("Org/Repo/tiny.gguf")
        catalog.write_text(catalog.read_text().replace(f"file:{tmp_path}", url))
        hub.fault("drip", chunk=64, pause=0.05)
        line = [
            sys.executable, "-m", "sbproxy_cli", "models", "pull", "tiny-model", "--format", "json",
            "--catalog-file", str(catalog), "--cache-dir", str(cache),
        ]  # fmt: skip
        child = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
            # Whoever runs the tests in the background has them ignore SIGINT, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while not any(path.is_file() and path.stat().st_size > 300 for path in cache.rglob("partials/*/*")):
            assert time.monotonic() < deadline
            assert child.poll() is None, child.communicate()
            time.sleep(0.02)
        child.send_signal(ending)
        out, err = child.communicate(timeout=30)
        assert (child.returncode, out) == (code, "")
        assert "Traceback" not in err
        again = subprocess.run(line, capture_output=True, text=True, env=environment(), timeout=60)
        ranges = [request.headers.get("range") for request in hub.requests if request.method == "GET"]
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["artifacts"][0]["verified_bytes"] == len(data)
    assert ranges[-1] is not None, "the part that came was fetched again"
    store = SqliteJobStore(cache / "jobs" / "jobs.sqlite3")
    jobs = store.jobs()
    store.close()
    assert [(job.state, job.error_code) for job in jobs] == [("failed", "pull_cancelled"), ("ready", None)]
