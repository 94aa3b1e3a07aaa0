"""Install and steer the fake llama-server (contracts section 48) for tests of every room.

``install(folder)`` writes an executable to point ``engines.llama_cpp.path`` at; ``configure`` changes how the next
start behaves; ``instances`` finds the live processes; ``control`` and friends talk to one over its port.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("fake_llama_server.py")

MODES = (
    "normal", "unary", "sse", "delayed_headers", "pre_output_error", "exceed_context", "mid_stream_error",
    "stream_until_cancelled", "slow_tokens", "crash_on_start", "crash_after_n", "oom_exit", "bad_file", "port_taken",
)  # fmt: skip

DEFAULTS: dict[str, Any] = {
    "mode": "normal",
    "ready_after_probes": 0,
    "header_delay_ms": 250,
    "token_interval_ms": 20,
    "crash_after": 1,
    "ignore_term": False,
    "text": "",
}


@dataclass(frozen=True)
class Instance:
    """One live fake engine process."""

    pid: int
    port: int
    argv: list[str]
    environ: dict[str, str]


def install(folder: Path, *, build: str = "b10434", without: tuple[str, ...] = (), **settings: Any) -> Path:
    """Write ``folder/llama-server`` and return it. ``without`` takes option names away from this build.

    ``settings`` as in ``DEFAULTS``: mode (one of ``MODES``), ready_after_probes, header_delay_ms,
    token_interval_ms, crash_after, ignore_term, text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    configure(folder, **settings)
    program = folder / "llama-server"
    words = [sys.executable, "-S", "-E", str(PROGRAM), str(folder), build, ",".join(without)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    return program


def configure(folder: Path, **settings: Any) -> None:
    """How the next start behaves; what is not named keeps its default."""
    unknown = set(settings) - set(DEFAULTS)
    if unknown:
        raise TypeError(f"unknown settings {sorted(unknown)}")
    if settings.get("mode", "normal") not in MODES:
        raise ValueError(f"unknown mode {settings['mode']!r}")
    partial = folder / "settings.json.tmp"
    partial.write_text(json.dumps(DEFAULTS | settings))
    partial.replace(folder / "settings.json")


def model_file(folder: Path, size: int = 4096) -> Path:
    """A file that the fake takes for a model: it starts with the GGUF magic and holds nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fake.gguf"
    path.write_bytes(b"GGUF" + bytes(size - 4))
    return path


def instances(folder: Path) -> list[Instance]:
    """The processes that were started from this installation and are still alive, oldest first."""
    found = []
    for path in sorted((folder / "instances").glob("*.json"), key=lambda each: each.stat().st_mtime_ns):
        instance = Instance(**json.loads(path.read_text()))
        if alive(instance.pid):
            found.append(instance)
    return found


def alive(pid: int) -> bool:
    """Whether a process of that id runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return sys.platform != "linux"


def control(port: int) -> dict[str, Any]:
    """mode, ready_probes, active_requests, completion_requests, completed_requests, cancelled_requests, last_body."""
    return _call("GET", port, "/__control")


def set_mode(port: int, mode: str) -> dict[str, Any]:
    """Change the mode of a live engine."""
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}")
    return _call("POST", port, f"/__control/mode/{mode}")


def reset(port: int) -> dict[str, Any]:
    """Counters to zero, mode to normal; it stays ready."""
    return _call("POST", port, "/__control/reset")


def _call(method: str, port: int, path: str) -> dict[str, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=5) as answer:
        result: dict[str, Any] = json.load(answer)
        return result
