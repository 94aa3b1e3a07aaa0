"""A chat template that refuses a conversation, for real: llama-server with a strict template behind the gateway."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.memory import ENDPOINT, LOCAL, ListSink, MemoryModels, routes
from sbproxy.gateway.http import HttpServer, UpstreamPool
from sbproxy.gateway.pipeline import Gateway
from support import real_parts
from support.daemon import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.real_engine, pytest.mark.timeout(120)]

SECRET = "zebra"
TEMPLATE = """
{%- if messages[0]['role'] == 'system' -%}
  {{ messages[0]['content'] }}{%- set turns = messages[1:] -%}
{%- else -%}
  {%- set turns = messages -%}
{%- endif -%}
{%- for turn in turns -%}
  {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception("zebra turns must alternate, and this one says: " + turn['content']) }}
  {%- endif -%}
<|im_start|>{{ turn['role'] }}
{{ turn['content'] | trim }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""
USER = {"role": "user", "content": "Say hello."}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real llama-server whose template takes strictly alternating turns."""
    folder: Path = tmp_path_factory.mktemp("strict")
    template, port = folder / "strict.jinja", free_port()
    template.write_text(TEMPLATE)
    words = [str(real_parts.real_binary(folder).program), "-m", str(real_parts.real_model_path()), "--offline"]
    words += ["--host", "127.0.0.1", "--port", str(port), "-c", "1024", "-np", "2", "--threads", "2"]
    words += ["--jinja", "--chat-template-file", str(template)]
    with (folder / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        deadline = time.monotonic() + 60
        while not healthy(port):
            assert process.poll() is None, (folder / "log").read_text(errors="replace")
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield port
        process.terminate()


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@dataclass
class Front:
    client: httpx.AsyncClient
    models: MemoryModels
    sink: ListSink

    async def ask(self, *messages: dict[str, Any], **more: Any) -> httpx.Response:
        body = {"model": "qwen", "messages": messages, "max_tokens": 3, **more}
        return await self.client.post("/v1/chat/completions", json=body)


@pytest.fixture
async def front(engine: int) -> AsyncIterator[Front]:
    models, sink, pool = MemoryModels(endpoint=replace(ENDPOINT, port=engine)), ListSink(), UpstreamPool()
    server = HttpServer(Gateway(routes(LOCAL), models, pool, sink, metrics_text=lambda: b""))
    await server.start("127.0.0.1", 0)
    try:
        async with httpx.AsyncClient(base_url=f"http://localhost:{server.port}", timeout=60) as client:
            yield Front(client, models, sink)
    finally:
        await server.close()
        await pool.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_its_refusal_is_the_callers_and_says_nothing_of_the_template(front: Front, stream: bool) -> None:
    answer = await front.ask({"role": "assistant", "content": "secret-turn"}, USER, stream=stream)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    for word in (SECRET, "secret-turn", "alternate", "jinja", "template.", "raise_exception", "loop.index0"):
        assert word not in answer.text
    assert len(front.models.permits) == 1, "it was tried again"
    assert front.models.permits[0].failures == [], "it was held against the engine"
    assert front.models.permits[0].releases == 1
    assert front.sink.last.retry_count == 0


@pytest.mark.parametrize(
    "messages",
    [
        [USER, USER],
        [USER, {"role": "system", "content": "Be brief."}],
        [{"role": "developer", "content": "a"}, {"role": "system", "content": "b"}, USER],
        [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": None}, USER],
        [{"role": "user", "content": [{"type": "input_text", "text": "Say"}, {"type": "text", "text": "hello."}]}],
    ],
)
async def test_what_is_repaired_suits_a_strict_template(front: Front, messages: list[dict[str, Any]]) -> None:
    answer = await front.ask(*messages)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["role"] == "assistant"
