"""What error answers of engines and providers become; the fixtures are answers that llama-server b10434 gave."""

from __future__ import annotations

import orjson
import pytest

from sbproxy.errors.gateway import (
    ContextLengthExceeded,
    EngineFault,
    EngineRefused,
    ProviderFault,
    ProviderRefused,
    UnsupportedByModel,
    UnsupportedContent,
)
from sbproxy.gateway.core.refusals import engine_refusal, event_status, provider_refusal


def engine(status: int, **error: object) -> Exception:
    body = orjson.dumps({"error": {"code": status, **error}})
    return engine_refusal(status, body, model="qwen", surface="chat_completions")


def provider(status: int, body: bytes, **how: object) -> Exception:
    facts = {"provider": "p", "public": "big", "upstream_model": "vendor/big-2024", "retry_after": None, **how}
    return provider_refusal(status, body, **facts)  # type: ignore[arg-type]


def test_context_length_with_both_numbers() -> None:
    error = engine(
        400, type="exceed_context_size_error", message="the request exceeds", n_prompt_tokens=3024, n_ctx=512
    )
    assert isinstance(error, ContextLengthExceeded)
    assert (error.prompt_tokens, error.context_tokens) == (3024, 512)
    assert "3024" in str(error)
    assert "512" in str(error)


def test_parser_text_is_dropped() -> None:
    error = engine(400, type="invalid_request_error", message="[json.exception.parse_error.101] last read: '\"zebra'")
    assert isinstance(error, EngineRefused)
    assert "zebra" not in str(error)
    assert "json.exception" not in str(error)


def test_context_error_without_numbers_is_a_plain_refusal() -> None:
    assert isinstance(engine(400, type="exceed_context_size_error", message="too long"), EngineRefused)


def test_embeddings_of_a_chat_model() -> None:
    error = engine(501, type="not_supported_error", message="This server does not support embeddings.")
    assert isinstance(error, UnsupportedByModel)


def test_an_embedding_input_longer_than_the_context() -> None:
    """The engine answers 500 and speaks of its batch, which holds one context."""
    words = "input (564 tokens) is too large to process. increase the physical batch size (current batch size: 512)"
    error = engine(500, type="server_error", message=words)
    assert isinstance(error, ContextLengthExceeded)
    assert (error.prompt_tokens, error.context_tokens) == (564, 512)
    assert "batch" not in str(error)
    assert isinstance(engine(500, type="server_error", message="it said: " + words), EngineFault)


def test_a_chat_with_an_embedding_model() -> None:
    words = "the current context does not logits computation. skipping"
    error = engine(500, type="server_error", message=words)
    assert isinstance(error, UnsupportedByModel)


def test_an_image_for_a_text_model() -> None:
    error = engine(500, type="server_error", message="image input is not supported - hint: mmproj at /srv/x")
    assert isinstance(error, UnsupportedContent)
    assert str(error) == "the model 'qwen' does not take image input"


@pytest.mark.parametrize("status", [401, 403, 404, 405, 408, 429, 500, 503, 302, 204])
def test_everything_else_is_a_fault_of_the_engine(status: int) -> None:
    error = engine(status, type="server_error", message="x" * 5000 + "\x1b[31m")
    assert isinstance(error, EngineFault)
    assert error.kind == "server_error"
    assert "xxx" not in str(error)
    assert isinstance(engine_refusal(status, b"\xff not json", model="m", surface="completions"), EngineFault)


def test_a_providers_error_keeps_its_status_and_words() -> None:
    body = b'{"error":{"message":"vendor/big-2024 is busy","type":"rate_limit","param":null,"code":"slow_down"}}'
    error = provider(429, body, retry_after=b"7")
    assert isinstance(error, ProviderRefused)
    assert (error.status, error.message, error.kind, error.provider_code) == (
        429,
        "big is busy",
        "rate_limit",
        "slow_down",
    )
    assert error.retry_after == "7"


def test_a_providers_error_is_bounded_and_printable() -> None:
    body = orjson.dumps({"error": {"message": "a\r\n\x1b[31m" + "x" * 100_000, "type": "t" * 5000, "code": {"no": 1}}})
    error = provider(400, body, retry_after=b"1\r\nset-cookie: x")
    assert isinstance(error, ProviderRefused)
    assert len(error.message) == 1000
    assert error.message.isprintable()
    assert error.kind == "invalid_request_error", "what is no word is left out"
    assert error.provider_code is None
    assert error.retry_after is None


@pytest.mark.parametrize("status", [401, 403])
def test_the_gateways_own_credential_is_not_the_callers_matter(status: int) -> None:
    error = provider(status, b'{"error":{"message":"Incorrect API key provided: sk-ab***yz"}}')
    assert isinstance(error, ProviderRefused)
    assert error.status == status
    assert "sk-ab" not in str(error)


@pytest.mark.parametrize(
    "body", [b"<html>", b"{}", b'{"error":"text"}', b'{"error":{"message":""}}', b'{"error":{"message":5}}', b"[]"]
)
def test_what_is_no_openai_error_is_a_fault_of_the_provider(body: bytes) -> None:
    assert isinstance(provider(500, body), ProviderFault)


@pytest.mark.parametrize("status", [204, 301, 304])
def test_a_status_that_is_neither_answer_nor_error(status: int) -> None:
    assert isinstance(provider(status, b'{"error":{"message":"x"}}'), ProviderFault)


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        ({"error": {"code": 400}}, 400),
        ({"error": {"code": 200}}, 502),
        ({"error": {"code": "x"}}, 502),
        ({"error": "x"}, 502),
        ({}, 502),
    ],
)
def test_status_of_an_error_event(failure: dict[str, object], status: int) -> None:
    assert event_status(failure) == status


KEY = "sk-live-0123456789abcdefghijklmnop"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
def test_a_providers_own_key_never_comes_back(status: int) -> None:
    said = {
        "message": f"bad key {KEY} (it begins {KEY[:17]} and ends {KEY[17:]})",
        "type": KEY, "param": f"header {KEY}", "code": f"invalid-{KEY}",
    }  # fmt: skip
    error = provider(status, orjson.dumps({"error": said}), secret=KEY)
    assert isinstance(error, ProviderRefused)
    shown = f"{error} {error.message} {error.kind} {error.param} {error.provider_code}"
    assert KEY not in shown
    assert KEY[:17] not in shown
    assert KEY[17:] not in shown
    if status in (401, 403):
        assert (error.param, error.provider_code) == (None, None)


def test_an_embedding_model_without_pooling_is_the_operators_to_mend() -> None:
    words = "Pooling type 'none' is not OAI compatible. Please use a different pooling type"
    error = engine(400, type="invalid_request_error", message=words)
    assert isinstance(error, EngineFault)
    assert "--pooling" in str(error)
