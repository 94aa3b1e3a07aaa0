"""What the tests named after document 1's headings share: the command line beside a daemon, edits, and waiting."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.cli import Ran, sbproxy
from support.daemon import FAKE_ENGINE_CONFIG, PASSWORD, Answer, Daemon

HOST = "/admin/model-host"
TINY_DEPLOYMENT = "      tiny: {model: tiny-model, max_concurrency: 4, max_queue_depth: 64, queue_timeout_ms: 20000}\n"
LAST_PROVIDER_LINE = "          default_model: tiny\n"
assert TINY_DEPLOYMENT in FAKE_ENGINE_CONFIG
assert FAKE_ENGINE_CONFIG.endswith(LAST_PROVIDER_LINE)


def managed(name: str, deployment: str, *models: str) -> str:
    """A further provider for the end of ``FAKE_ENGINE_CONFIG``."""
    return (
        f"        - {{name: {name}, provider_type: managed_model, deployment: {deployment}, "
        f"models: [{', '.join(models)}]}}\n"
    )


def catalog_model(folder: Path, name: str, **variant: Any) -> str:
    """A catalog entry of one variant ``only``; its file is written. ``variant`` replaces keys of the variant."""
    file = f"{name}.gguf"
    data = b"GGUF" + name.encode() * 300
    (folder / file).write_bytes(data)
    made = {
        "id": "only",
        "format": "gguf",
        "quant": "Q4_0",
        "engines": ["llama_cpp"],
        "source": f"file:{folder}",
        "revision": "1" * 40,
        "files": [{"path": file, "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}],
        "requirements": {"accelerators": ["cpu", "cuda", "metal"], "min_memory_bytes": 1},
        "stability": "preview",
        "certification": "test",
    }
    about = {"params": "1M", "license": "mit", "family": name, "context_length": 512}
    return f"  {name}: {json.dumps({**about, 'variants': [made | variant]})}\n"


def cli(handle: Daemon, *words: str) -> Ran:
    """The command line beside this daemon, in the test's own process."""
    env = {"SB_ADMIN_URL": f"http://127.0.0.1:{handle.admin_port}", "SB_ADMIN_PASSWORD": PASSWORD}
    return sbproxy(*words, env=env)


def cli_json(handle: Daemon, *words: str) -> dict[str, Any]:
    ran = cli(handle, *words, "--format", "json")
    assert ran.code == 0, ran.err
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


def admin(handle: Daemon, method: str, path: str, body: Any = None) -> Answer:
    return handle.ask(method, path, body, admin=True)


def act(handle: Daemon, action: str, deployment: str = "tiny", *, key: str = "deployment") -> dict[str, Any]:
    """One lifecycle action, and its job once that has ended."""
    answer = admin(handle, "POST", f"{HOST}/{action}", {key: deployment})
    assert answer.status in (200, 202), answer.body
    return ended(handle, answer.json()["job_id"])


def ended(handle: Daemon, job_id: str, timeout_s: float = 20) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while True:
        job: dict[str, Any] = admin(handle, "GET", f"{HOST}/jobs/{job_id}").json()["job"]
        if job["terminal_at_ms"] is not None:
            return job
        assert time.monotonic() < deadline, handle.log
        time.sleep(0.03)


def rows(handle: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin(handle, "GET", f"{HOST}/status").json()["deployments"]
    return found


def edit(handle: Daemon, old: str, new: str) -> None:
    """Replace by rename, as editors do."""
    text = handle.config.read_text()
    assert old in text
    draft = handle.config.with_name("sb.yml.new")
    draft.write_text(text.replace(old, new))
    draft.replace(handle.config)


def reload(handle: Daemon) -> Answer:
    """The route; waits while the file watcher's own reload of the same edit is under way."""
    deadline = time.monotonic() + 20
    while (answer := admin(handle, "POST", "/admin/reload")).status == 409:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return answer


def until(condition: Callable[[], Any], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.03)


def starts(folder: Path) -> int:
    """How many engine processes were ever started from this installation of the fake engine."""
    return len(list((folder / "instances").glob("*.json")))


@contextmanager
def in_background(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Runs ``work`` beside the body; what it returned is in the list afterwards."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    try:
        yield results
    finally:
        thread.join(40)
        assert not thread.is_alive()


@contextmanager
def hosted_provider() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A provider elsewhere: (base address, what it was asked). It answers every completion with three tokens."""
    asked: list[tuple[str, str]] = []
    usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(("GET", self.path))
            self.reply({"object": "list", "data": []})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(("POST", self.path))
            message = {"role": "assistant", "content": "yes"}
            choices = [{"index": 0, "finish_reason": "stop", "message": message}]
            head = {"id": "c", "object": "chat.completion", "created": 1, "model": request["model"]}
            self.reply({**head, "choices": choices, "usage": usage})

        def reply(self, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Silent: tests look at what was asked."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
