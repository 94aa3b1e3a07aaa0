"""mistral.rs through the whole daemon: a safetensors snapshot, the stand-in program, the unmodified openai client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from support import fake_mistralrs, tiny_llama
from support.daemon import Daemon, daemon

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

CONFIG = """
proxy:
  http_bind_port: {port}
  bind_address: 127.0.0.1
  admin: {enabled: true, port: {admin_port}, username: admin, password: "${SB_ADMIN_PASSWORD}"}
  model_host:
    catalog_file: catalog.yml
    cache: {directory: "{dir}/cache"}
    engines: {mistralrs: {path: "{dir}/mistralrs", acceleration: cpu}}
    deployments:
      chatter: {model: tiny-llama, engine: mistralrs, kv_quant: int8, extra_args: [--prefix-cache-n, "4"]}
origins:
  127.0.0.1:
    action:
      type: ai_proxy
      providers:
        - {name: chat, provider_type: managed_model, deployment: chatter, models: [chatter], default_model: chatter}
"""
HELLO = [{"role": "user", "content": "The capital of France?"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("mistralrs")
    fake_mistralrs.install(folder)
    snapshot = tiny_llama.write_tiny_llama(folder / "models")
    (folder / "catalog.yml").write_text(tiny_llama.catalog(snapshot, engines=["mistralrs"]))
    with daemon(folder, CONFIG, HF_TOKEN="t0p-s3cret") as handle:
        handle.start()
        yield handle


@pytest.fixture
def client(served: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="local", max_retries=0) as made:
        yield made


def test_chat_and_stream_under_the_public_name(client: openai.OpenAI, served: Daemon) -> None:
    answer = client.chat.completions.create(model="chatter", messages=HELLO)
    assert (answer.model, answer.choices[0].message.content) == ("chatter", "Paris")
    chunks = list(
        client.chat.completions.create(
            model="chatter", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert {chunk.model for chunk in chunks} == {"chatter"}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Paris"
    assert chunks[-1].usage is not None
    row = served.status_row("chatter")
    assert (row["state"], row["engine"]) == ("ready", "mistralrs")


def test_the_fit_books_no_saving_for_a_kv_type_that_is_not_passed(served: Daemon) -> None:
    """Two for keys and values, layers, heads, width, two bytes an element, tokens."""
    width = tiny_llama.HIDDEN // tiny_llama.HEADS
    expected = 2 * tiny_llama.LAYERS * tiny_llama.HEADS * width * 2 * tiny_llama.CONTEXT
    assert served.status_row("chatter")["memory"]["kv_bytes"] == expected


def test_auto_never_picks_it(served: Daemon) -> None:
    """A model that only it runs needs a deployment that names it."""
    document = served.config.read_text().replace("engine: mistralrs, ", "")
    (served.directory / "auto.yml").write_text(document)
    command = [sys.executable, "-m", "sbproxy_cli", "validate", str(served.directory / "auto.yml")]
    answer = subprocess.run(command, capture_output=True, text=True, env=served.environ, timeout=60, check=False)
    assert answer.returncode == 2
    assert "chatter" in answer.stderr
    assert "mistralrs" in answer.stderr
