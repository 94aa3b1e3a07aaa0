"""Every example is run: started as it stands but for ports and parts, and asked for an answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support import real_parts
from support.daemon import Daemon, daemon

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_every_example_has_a_test_here() -> None:
    assert sorted(path.parent.name for path in EXAMPLES.rglob("sb.yml")) == [
        "model-host-managed",
        "openai-provider",
        "serve-compat",
    ]


def example(name: str, *changes: tuple[str, str]) -> str:
    text = (EXAMPLES / name / "sb.yml").read_text()
    for old, new in changes:
        assert old in text, f"{name} has no {old!r}"
        text = text.replace(old, new)
    return text


@pytest.mark.real_engine
@pytest.mark.timeout(300)
def test_model_host_managed(tmp_path: Path) -> None:
    text = example(
        "model-host-managed",
        ("http_bind_port: 8080", "http_bind_port: {port}"),
        ("port: 9090", "port: {admin_port}"),
        ("    engines:", f'    cache: {{directory: "{real_parts.cache_root()}"}}\n\n    engines:'),
    )
    with daemon(tmp_path, text) as served:
        served.start(timeout_s=240)
        answer = served.chat("smollm2-135m-instruct", content="Complete the sentence: The capital of France is",
                             temperature=0, max_tokens=24)  # fmt: skip
        assert answer.status == 200, answer.body
        assert "Paris" in answer.json()["choices"][0]["message"]["content"]
        assert served.status_row("smollm2")["keep_alive_secs"] == 1800


@pytest.mark.real_engine
@pytest.mark.timeout(300)
def test_serve_compat(tmp_path: Path) -> None:
    text = example(
        "serve-compat",
        ("http_bind_port: 8080", "http_bind_port: {port}"),
        ("port: 9090", "port: {admin_port}"),
        ("            eviction: lru", f'            eviction: lru\n            cache_dir: "{real_parts.cache_root()}"'),
    )
    with daemon(tmp_path, text) as served:
        served.start(timeout_s=240)
        answer = served.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Say hello."}],
                            "temperature": 0, "max_tokens": 8})  # fmt: skip
        assert answer.status == 200, answer.body
        assert answer.json()["model"] == "chat"
        (row,) = served.ask("GET", "/admin/model-host/status", admin=True).json()["deployments"]
        assert row["deployment"].startswith("serve-")
        assert row["keep_alive_secs"] == 1800


def wait_listening(served: Daemon) -> None:
    """For a daemon without an admin API: until the gateway takes connections."""
    for _ in range(600):
        try:
            served.ask("GET", "/v1/models")
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(served.log)


@pytest.fixture
def provider() -> Iterator[tuple[int, list[dict[str, str]]]]:
    """An OpenAI-compatible endpoint that notes the headers it gets."""
    seen: list[dict[str, str]] = []

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append({name.lower(): value for name, value in self.headers.items()})
            body = json.dumps(
                {
                    "id": "c1", "object": "chat.completion", "created": 1, "model": asked["model"],
                    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ""}}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                }
            ).encode()  # fmt: skip
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1], seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_openai_provider(tmp_path: Path, provider: tuple[int, list[dict[str, str]]]) -> None:
    port, seen = provider
    url = f"http://127.0.0.1:{port}/v1"
    text = example(
        "openai-provider",
        ("http_bind_port: 8080", "http_bind_port: {port}"),
        # The provider's public address is the one thing that a test may not use.
        (
            "        - name: openai\n",
            f"        - name: openai\n          base_url: {url}\n          allow_private_base_url: true\n",
        ),
    )
    secret = "sk-example-key-of-a-provider"
    with daemon(tmp_path, text, OPENAI_API_KEY=secret) as served:
        served.start(wait=False)
        wait_listening(served)
        models = [model["id"] for model in served.ask("GET", "/v1/models").json()["data"]]
        answer = served.chat(models[0])
        assert answer.status == 200, answer.body
        assert answer.json()["model"] == models[0]
        assert answer.headers["x-sbproxy-route-class"] == "external"
        assert seen[0]["authorization"] == f"Bearer {secret}"
        assert secret not in served.log
