"""Embeddings for real: the unmodified openai client, the daemon, a real llama-server and a tiny model built here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from support import real_parts, tiny_gguf
from support.daemon import Daemon, daemon

pytestmark = [pytest.mark.e2e, pytest.mark.real_engine, pytest.mark.timeout(300)]

CATALOG = """schema_version: 2
catalog_revision: embeddings-1
models:
  tiny-bert:
    params: %(params)s
    license: apache-2.0
    family: bert
    context_length: %(context)d
    modality: embedding
    variants:
      - id: f32
        format: gguf
        quant: F32
        engines: [llama_cpp]
        source: "file:%(folder)s"
        revision: "1"
        files: [{path: tiny-bert.gguf, sha256: "%(sha256)s", size_bytes: %(size)d}]
        requirements: {accelerators: [cpu, metal, cuda]}
        stability: preview
        certification: test
"""
CONFIG = """
proxy:
  http_bind_port: {port}
  bind_address: 127.0.0.1
  admin: {enabled: true, port: {admin_port}, username: admin, password: "${SB_ADMIN_PASSWORD}"}
  model_host:
    catalog_file: catalog.yml
    cache: {directory: "{dir}/cache"}
    engines: {llama_cpp: {path: "%(program)s"}}
    deployments:
      embedder: {model: tiny-bert, warm: true, max_concurrency: 2}
origins:
  127.0.0.1:
    action:
      type: ai_proxy
      providers:
        - {name: local, provider_type: managed_model, deployment: embedder, models: [embedder], default_model: embedder}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("embeddings")
    model = tiny_gguf.write_tiny_bert(folder / "models" / "tiny-bert.gguf").read_bytes()
    facts = {"folder": folder / "models", "sha256": hashlib.sha256(model).hexdigest(), "size": len(model)}
    sizes = {"params": tiny_gguf.PARAMETERS, "context": tiny_gguf.CONTEXT}
    (folder / "catalog.yml").write_text(CATALOG % {**facts, **sizes})
    program = real_parts.real_binary(folder / "engine").program
    with daemon(folder, CONFIG % {"program": program}) as handle:
        handle.start(timeout_s=120)
        yield handle


@pytest.fixture
def client(served: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="local", max_retries=0) as made:
        yield made


def length(vector: list[float]) -> float:
    return math.sqrt(sum(figure * figure for figure in vector))


def test_a_list_of_texts(client: openai.OpenAI) -> None:
    texts = ["the cat sits", "hello world", "the cat sits"]
    raw = client.embeddings.with_raw_response.create(model="embedder", input=texts, encoding_format="float")
    answer = raw.parse()
    assert answer.model == "embedder"
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    assert all(len(entry.embedding) == tiny_gguf.EMBEDDING for entry in answer.data)
    assert all(math.isclose(length(entry.embedding), 1, abs_tol=1e-3) for entry in answer.data)
    first, second, again = (entry.embedding for entry in answer.data)
    assert math.dist(first, again) < 1e-4 < math.dist(first, second)
    # Each text with its two marks: [CLS] the cat sits [SEP], [CLS] hello world [SEP].
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 5 + 4 + 5
    assert raw.headers["x-sbproxy-logical-model"] == "embedder"
    assert raw.headers["x-sbproxy-route-class"] == "local"


def test_the_encoding_that_the_client_asks_for_by_itself(client: openai.OpenAI) -> None:
    """Without being told, the client asks for base64 and decodes it."""
    binary = client.embeddings.create(model="embedder", input="the cat sits").data[0].embedding
    plain = client.embeddings.create(model="embedder", input="the cat sits", encoding_format="float").data[0].embedding
    assert len(binary) == tiny_gguf.EMBEDDING
    assert math.dist(binary, plain) < 1e-4


def test_a_text_of_a_whole_context_is_one_batch(client: openai.OpenAI) -> None:
    words = " ".join(["cat"] * (tiny_gguf.CONTEXT - 2))
    assert client.embeddings.create(model="embedder", input=words).usage.prompt_tokens == tiny_gguf.CONTEXT


def test_a_text_longer_than_the_context_is_refused_and_the_engine_lives(client: openai.OpenAI, served: Daemon) -> None:
    before = served.status_row("embedder")
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="embedder", input=" ".join(["cat"] * (tiny_gguf.CONTEXT + 50)))
    assert caught.value.code == "context_length_exceeded"
    assert str(tiny_gguf.CONTEXT + 52) in str(caught.value.body)
    assert "batch" not in str(caught.value.body)
    assert client.embeddings.create(model="embedder", input="a cat").data
    assert served.status_row("embedder")["port"] == before["port"]


def test_a_chat_with_an_embedding_model_is_a_clear_refusal(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="embedder", messages=[{"role": "user", "content": "hello"}])
    assert caught.value.status_code in (400, 501)
    assert "embedder" in str(caught.value.body)
    assert "logits" not in str(caught.value.body)


def test_the_kv_cache_of_an_embedding_model_costs_nothing(served: Daemon) -> None:
    memory = served.status_row("embedder")["memory"]
    assert memory["kv_bytes"] == 0
    assert memory["weight_bytes"] > 0
