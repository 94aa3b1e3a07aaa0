"""The vLLM driver on real vLLM (``make test-vllm``): one daemon, two tiny deployments that share one place in memory.

The tests build on each other's engine, because each start of vLLM on a CPU takes more than a minute.
"""

from __future__ import annotations

import http.client
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from support import tiny_llama
from support.daemon import PASSWORD, Daemon, daemon

START_S = 420

CONFIG = """
proxy:
  http_bind_port: {port}
  bind_address: 127.0.0.1
  admin:
    enabled: true
    port: {admin_port}
    username: admin
    password: "${SB_ADMIN_PASSWORD}"
    rate_limit_per_minute: 100000
  model_host:
    catalog_file: catalog.yml
    cache: {directory: "{dir}/cache", max_resident_models: 1}
    engines: {vllm: {path: "%(program)s", launch: binary, acceleration: cpu}}
    deployments:
      chatter:
        model: tiny-llama
        engine: vllm
        warm: true
        max_concurrency: 2
        queue_timeout_ms: 600000
        extra_args: ["--enforce-eager"]
      embedder:
        model: tiny-llama
        engine: vllm
        modality: embedding
        max_concurrency: 2
        queue_timeout_ms: 600000
        extra_args: ["--enforce-eager"]
origins:
  127.0.0.1:
    action:
      type: ai_proxy
      providers:
        - {name: chat, provider_type: managed_model, deployment: chatter, models: [chatter], default_model: chatter}
        - {name: embed, provider_type: managed_model, deployment: embedder, models: [embedder]}
"""
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("vllm")
    snapshot = tiny_llama.write_tiny_llama(folder / "models")
    (folder / "catalog.yml").write_text(tiny_llama.catalog(snapshot, engines=["vllm"]))
    with daemon(folder, CONFIG % {"program": os.environ["SBPROXY_VLLM"]}, HF_TOKEN="t0p-s3cret") as handle:
        handle.start(timeout_s=START_S)
        yield handle


@pytest.fixture
def client(served: Daemon) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{served.port}/v1"
    with openai.OpenAI(base_url=url, api_key="local", max_retries=0, timeout=START_S) as made:
        yield made


def processes_in(folder: Path) -> list[int]:
    """Live processes of engines that this daemon started, by the folder where they run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(folder / "cache"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_chat_completion(client: openai.OpenAI, served: Daemon) -> None:
    row = served.status_row("chatter")
    assert (row["state"], row["engine"]) == ("ready", "vllm")
    raw = client.chat.completions.with_raw_response.create(model="chatter", messages=HELLO, max_tokens=8, temperature=0)
    answer = raw.parse()
    assert answer.model == "chatter"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    # One token a byte of "user: hello\nassistant:".
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (22, 8)
    assert raw.headers["x-sbproxy-route-class"] == "local"


def test_a_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="chatter",
            messages=HELLO,
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert {chunk.model for chunk in chunks} == {"chatter"}
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    again = client.chat.completions.create(model="chatter", messages=HELLO, max_tokens=8, temperature=0)
    assert text == again.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8


def test_legacy_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="chatter", prompt="Once", max_tokens=4, temperature=0)
    assert answer.model == "chatter"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_more_callers_than_places_are_all_served(client: openai.OpenAI) -> None:
    def ask(number: int) -> int:
        answer = client.chat.completions.create(
            model="chatter", messages=[{"role": "user", "content": str(number)}], max_tokens=16, temperature=0
        )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    with ThreadPoolExecutor(6) as callers:
        assert all(0 < tokens <= 16 for tokens in callers.map(ask, range(6)))


def test_a_prompt_longer_than_the_context_is_the_callers_mistake(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="chatter", messages=[{"role": "user", "content": "x" * 600}])
    assert "vllm" not in str(caught.value.body).lower()


def test_the_engine_asks_for_its_key_and_nobody_can_read_it(served: Daemon) -> None:
    port = served.status_row("chatter")["port"]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/v1/models")
    assert connection.getresponse().status == 401
    connection.close()
    seen = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes_in(served.directory))
    assert b"serve" in seen
    assert b"--api-key" not in seen
    for pid in processes_in(served.directory):
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"t0p-s3cret" not in environ
        assert PASSWORD.encode() not in environ


def test_an_embedding_takes_the_place_of_the_chat_model(client: openai.OpenAI, served: Daemon) -> None:
    texts = ["hello", "world", "hello"]
    answer = client.embeddings.create(model="embedder", input=texts, encoding_format="float")
    assert answer.model == "embedder"
    first, second, again = (entry.embedding for entry in answer.data)
    assert len(first) == tiny_llama.HIDDEN
    assert math.dist(first, again) < 1e-2 < math.dist(first, second)
    assert served.status_row("embedder")["state"] == "ready"
    assert served.status_row("chatter")["state"] == "stopped"


def test_what_a_killed_daemon_leaves_is_ended_by_the_next(served: Daemon, client: openai.OpenAI) -> None:
    """vLLM is several processes, and the kernel ends only the first of them with the daemon."""
    before = processes_in(served.directory)
    assert len(before) > 1
    served.kill()
    served.start(timeout_s=START_S)
    assert not set(before) & set(processes_in(served.directory))
    answer = client.chat.completions.create(model="chatter", messages=HELLO, max_tokens=4, temperature=0)
    assert answer.choices[0].message.content
    assert served.stop(60) == 0
    deadline = time.monotonic() + 10
    while processes_in(served.directory) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_in(served.directory) == []
