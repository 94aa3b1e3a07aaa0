"""Which bodies go on, what is said about the others, and what changes on the way."""

from __future__ import annotations

import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory import chat
from sbproxy.errors.gateway import (
    InvalidRequest,
    MultipartRefused,
    UnsupportedMediaType,
)
from sbproxy.gateway.core.request_body import body_for, check_media_type, read_inference
from sbproxy.gateway.core.surfaces import Surface


def read(body: Any, surface: Surface = "chat_completions") -> Any:
    return read_inference(surface, body if isinstance(body, bytes) else orjson.dumps(body))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(model=5), "model"),
        (chat(model=""), "model"),
        (chat(model="x" * 257), "model"),
        (chat(model="a\nb"), "model"),
        ({"model": "m"}, "messages"),
        (chat(messages=[]), "messages"),
        (chat(messages="hi"), "messages"),
        (chat(messages=["hi"]), "messages[0]"),
        (chat(messages=[{"role": "user", "content": "a"}, {"content": "b"}]), "messages[1].role"),
        (chat(messages=[{"role": "user", "content": 5}]), "messages[0].content"),
        (chat(messages=[{"role": "user", "content": [{"text": "no type"}]}]), "messages[0].content[0]"),
        (chat(messages=[{"role": "user", "content": ["x"]}]), "messages[0].content[0]"),
        (chat(stream="yes"), "stream"),
        (chat(stream=1), "stream"),
        (chat(stream_options={"include_usage": True}), "stream_options"),
        (chat(stream=True, stream_options="x"), "stream_options"),
        (chat(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage"),
        (chat(n=0), "n"),
        (chat(n=True), "n"),
        (chat(n="2"), "n"),
    ],
)
def test_refused_chat(body: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("surface", "body", "param"),
    [
        ("completions", {"model": "m"}, "prompt"),
        ("completions", {"model": "m", "prompt": ""}, "prompt"),
        ("completions", {"model": "m", "prompt": {"a": 1}}, "prompt"),
        ("embeddings", {"model": "m"}, "input"),
        ("embeddings", {"model": "m", "input": []}, "input"),
        ("embeddings", {"model": "m", "input": "x", "stream": True}, "stream"),
    ],
)
def test_refused_on_other_surfaces(surface: Surface, body: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body, surface)
    assert caught.value.param == param


SECRET = "zebra-prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  \n",
        b"[]",
        b'"text"',
        b"null",
        b'{"model": "m", "messages": [{"role": "user", "content": "zebra-prompt',
        b'{"zebra-prompt": "\\ud800"}',
        b'{"zebra-prompt": "\xff\xfe"}',
        b'{"zebra-prompt": NaN}',
        b"{'zebra-prompt': 1}",
        b'{"zebra-prompt":' + b"[" * 200_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
def test_what_is_no_json_object_is_refused_without_quoting_it(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 120
    assert caught.value.param is None


@given(st.binary(max_size=200))
def test_any_bytes_give_a_request_or_a_typed_refusal(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read(body)


KEYS = ["model", "messages", "role", "content", "type", "stream", "stream_options", "include_usage", "image_url", "url"]
SCALAR = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["model", "messages", "stream", "stream_options", "n", "tools"]), JSON))
def test_any_object_gives_a_request_or_a_typed_refusal(body: dict[str, Any]) -> None:
    try:
        request = read(body)
    except InvalidRequest:
        return
    assert orjson.loads(body_for(request, "alias"))["model"] == "alias"


def test_accepted() -> None:
    request = read(
        chat("a/b:c#d", stream=True, n=2, messages=[{"role": "assistant", "content": None, "tool_calls": []}])
    )
    assert (request.model, request.stream, request.wants_usage) == ("a/b:c#d", True, False)
    assert read(chat(None)).model is None
    assert read(chat(stream=None, stream_options=None)).stream is False
    assert read({"model": "m", "prompt": ["a", "b"]}, "completions").model == "m"


def test_the_body_says_what_was_checked() -> None:
    twice = b'{"model":"cheap","messages":[{"role":"user","content":"x"}],"mod\\u0065l":"dear"}'
    request = read(twice)
    assert request.model == "dear"
    assert body_for(request, "dear").count(b"model") == 1


def test_usage_is_asked_for_on_streams_only() -> None:
    assert "stream_options" not in orjson.loads(body_for(read(chat()), "m"))
    sent = orjson.loads(body_for(read(chat(stream=True)), "m"))
    assert sent["stream_options"] == {"include_usage": True}
    sent = orjson.loads(body_for(read(chat(stream=True, stream_options={"include_usage": False, "x": 1})), "m"))
    assert sent["stream_options"] == {"include_usage": True, "x": 1}
    asked = read(chat(stream=True, stream_options={"include_usage": True}))
    assert asked.wants_usage


def test_everything_else_is_passed_on() -> None:
    body = chat(
        temperature=0.5, seed=7, tools=[{"type": "function", "function": {"name": "f"}}], made_up={"a": [1, None]}
    )
    assert orjson.loads(body_for(read(body), "m")) == {**body, "model": "m"}


@pytest.mark.parametrize("depth", [200, 251, 252, 253, 254, 255, 256, 300, 1000, 1023, 1024, 5000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_every_body_that_is_taken_can_be_sent_on(depth: int, opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    inner = b"1" if opening != b"[" else b""
    body = orjson.dumps(chat())[:-1] + b',"metadata":' + opening * depth + inner + closing * depth + b"}"
    taken = [read(body)] if depth <= 200 else []
    if not taken:
        with contextlib.suppress(InvalidRequest):
            taken.append(read(body))
    for inference in taken:
        assert body_for(inference, "m"), "a body that was taken must be one that can be written"
    if depth >= 300:
        assert taken == []


class TestMediaType:
    @pytest.mark.parametrize(
        "kind",
        [b"application/json; charset=utf-8", b"Application/JSON", b"text/json", b"application/vnd.api+json ;v=1"],
    )
    def test_json_under_any_name(self, kind: bytes) -> None:
        check_media_type("chat_completions", kind)

    @pytest.mark.parametrize(
        "kind",
        [b"", b"text/plain", b"application/x-www-form-urlencoded", b"application/jsonp", b"application/json, text/html",
         b"image/json", b"application/octet-stream", b"x/json"],
    )  # fmt: skip
    def test_nothing_else(self, kind: bytes) -> None:
        with pytest.raises(UnsupportedMediaType):
            check_media_type("chat_completions", kind)

    @pytest.mark.parametrize("kind", [b"multipart/form-data; boundary=x", b"Multipart/mixed"])
    def test_multipart_has_a_refusal_of_its_own(self, kind: bytes) -> None:
        with pytest.raises(MultipartRefused):
            check_media_type("embeddings", kind)
