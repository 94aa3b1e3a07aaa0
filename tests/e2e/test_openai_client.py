"""The unmodified openai client against the daemon and a real llama-server (issue M1, what it must show 2)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from support import real_parts
from support.daemon import Daemon, daemon

pytestmark = [pytest.mark.e2e, pytest.mark.real_engine, pytest.mark.timeout(300)]

CONFIG = """
proxy:
  http_bind_port: {port}
  bind_address: 127.0.0.1
  admin: {enabled: true, port: {admin_port}, username: admin, password: "${SB_ADMIN_PASSWORD}"}
  model_host:
    cache: {directory: "%(cache)s"}
    deployments:
      smol:
        model: smollm2-135m-instruct
        pull: on_boot
        warm: true
        max_concurrency: 2
        max_context: 2048
origins:
  localhost: &proxy
    action:
      type: ai_proxy
      providers:
        - name: local
          provider_type: managed_model
          deployment: smol
          models: ["team/smol:135m"]
          default_model: "team/smol:135m"
  127.0.0.1: *proxy
"""
MODEL = "team/smol:135m"
CAPITAL = [{"role": "user", "content": "Complete the sentence: The capital of France is"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory: Path = tmp_path_factory.mktemp("openai")
    with daemon(directory, CONFIG % {"cache": real_parts.cache_root()}) as handle:
        handle.start(timeout_s=240)
        yield handle


@pytest.fixture
def client(served: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="local", max_retries=0) as made:
        yield made


def test_chat(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=CAPITAL, max_tokens=32, temperature=0)
    answer = raw.parse()
    assert answer.model == MODEL
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    assert raw.headers["x-sbproxy-logical-model"] == MODEL
    assert raw.headers["x-sbproxy-route-class"] == "local"


def test_stream_without_asked_usage_has_none_and_ends_properly(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=CAPITAL, max_tokens=8, temperature=0, stream=True)
    )
    assert len(chunks) > 3
    assert {chunk.model for chunk in chunks} == {MODEL}
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)


def test_stream_with_asked_usage_gets_it_last(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=CAPITAL,
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert 0 < chunks[-1].usage.completion_tokens <= 8


def test_legacy_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=5)
    assert answer.model == MODEL
    assert answer.choices[0].text


def test_embeddings_of_a_chat_model_are_a_clear_refusal(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(model=MODEL, input="hello")
    assert 400 <= caught.value.status_code < 502
    assert "embedding" in str(caught.value.body)
    assert "llama" not in str(caught.value.body).lower()


def test_list_and_retrieve(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    model = client.models.retrieve(MODEL)
    assert (model.id, model.object, model.owned_by, model.created) == (MODEL, "model", "sbproxy", 0)


def test_a_wrong_model_names_the_near_one(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="team/smol:136m", messages=CAPITAL)
    assert caught.value.code == "model_not_found"
    assert MODEL in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("team/smo")


def test_a_prompt_that_is_too_long_says_both_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 6000}])
    assert caught.value.code == "context_length_exceeded"
    assert "2048" in caught.value.message


def test_a_client_time_out_frees_the_permit_and_stops_the_engine(served: Daemon, client: openai.OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Write a very long story."}], max_tokens=1500
        )
    wait_idle(served)


def test_cancelling_a_stream_frees_the_permit_and_stops_the_engine(served: Daemon, client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Write a very long story."}], max_tokens=1500, stream=True
    ) as stream:
        for number, _ in enumerate(stream):
            if number == 3:
                break
    wait_idle(served)
    entry = next(e for e in served.ask("GET", "/api/requests", admin=True).json() if e.get("streamed"))
    assert (entry["status"], entry["error_class"]) == (499, "client_closed")


def wait_idle(served: Daemon) -> None:
    """Permit back within a second; and the engine's slots really idle, or the next answers would wait behind them."""
    deadline = time.monotonic() + 1.0
    while served.status_row("smol")["active_requests"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started = time.monotonic()
    for _ in range(2):
        assert served.chat(MODEL, max_tokens=1).status == 200
    assert time.monotonic() - started < 20
