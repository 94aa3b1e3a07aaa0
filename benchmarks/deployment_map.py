"""A map of 1000 deployments under ``admin_managed``: how long a PUT, the status and the map take, and the daemon's CPU.

A real daemon over loopback with a scripted engine; no deployment is loaded.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Answer, Daemon, daemon, tiny_catalog

DEPLOYMENTS = 1000
PATH = "/admin/model-host/deployments"
STATUS = "/admin/model-host/status"
_START = FAKE_ENGINE_CONFIG.index("    deployments:")
CONFIG = (
    FAKE_ENGINE_CONFIG[:_START]
    + '    authority: admin_managed\n    store_path: "{dir}/state/desired.sqlite3"\n'
    + FAKE_ENGINE_CONFIG[FAKE_ENGINE_CONFIG.index("origins:") :]
)


def many(**settings: Any) -> dict[str, Any]:
    one = {"model": "tiny-model", "cold_start": "wait", **settings}
    return {f"deployment-{number:04}": one for number in range(DEPLOYMENTS)}


def measured(served: Daemon, ask: Callable[[], Answer]) -> tuple[Answer, float, float]:
    """The answer, and the milliseconds that it took: by the clock, and of the daemon's CPU."""
    assert served.process is not None
    process = psutil.Process(served.process.pid)
    before, started = sum(process.cpu_times()[:2]), time.perf_counter()
    answer = ask()
    took = time.perf_counter() - started
    return answer, took * 1000, (sum(process.cpu_times()[:2]) - before) * 1000


def replaced(served: Daemon, revision: int | None, deployments: dict[str, Any]) -> tuple[Answer, float, float]:
    body = {"expected_revision": revision, "deployments": deployments}
    answer, took, cpu = measured(served, lambda: served.ask("PUT", PATH, body, admin=True))
    assert answer.status == 200, answer.body
    return answer, took, cpu


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    tiny_catalog(folder)
    fake_engine.install(folder)
    with daemon(folder, CONFIG) as served:
        served.start()
        for name, revision, deployments in (
            ("PUT, all are new", None, many()),
            ("PUT, the same map again", 1, many()),
            ("PUT, all are changed", 2, many(max_concurrency=2)),
        ):
            _, took, cpu = replaced(served, revision, deployments)
            print(f"{name:28} {took:8.0f} ms {cpu:8.0f} ms CPU")
        for path in (STATUS, PATH):
            rounds = [measured(served, lambda path=path: served.ask("GET", path, admin=True)) for _ in range(20)]
            took = statistics.median(each[1] for each in rounds)
            cpu = statistics.mean(each[2] for each in rounds)
            print(f"{'GET ' + path:28} {took:8.0f} ms {cpu:8.0f} ms CPU, {len(rounds[0][0].body)} bytes")


main()
