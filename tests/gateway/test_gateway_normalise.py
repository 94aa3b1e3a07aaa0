"""Which requests to an engine go on as they are, and laws about all others."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory import chat
from gateway.normalising import HELLO, TIME, WEATHER, call, called, repaired, result
from sbproxy.errors.gateway import InvalidRequest, RequestRefused
from sbproxy.gateway.core.normalise import EngineLimits, normalise_chat
from sbproxy.gateway.core.request_body import body_for, read_inference
from sbproxy.gateway.core.surfaces import Surface


@pytest.mark.parametrize(
    ("surface", "body"),
    [
        ("chat_completions", chat()),
        ("chat_completions", chat(stream=True, stream_options={"include_usage": True})),
        (
            "chat_completions",
            chat(
                messages=[{"role": "system", "content": "x"}, HELLO, {"role": "assistant", "content": "y"}, HELLO],
                temperature=0.7, top_p=1, max_tokens=4095, n=2, stop=["a"], seed=7, user="u", logit_bias={"50": -100},
                logprobs=True, top_logprobs=20, response_format={"type": "json_object"}, made_up=[None], top_k=40,
                reasoning_effort="low", metadata={"a": "b"}, store=False, modalities=["text"],
            ),
        ),
        ("chat_completions", chat(tools=[WEATHER, TIME], tool_choice="auto", parallel_tool_calls=False)),
        ("chat_completions", chat(messages=[HELLO, called(call('{"a": 1}')), result(), HELLO])),
        ("chat_completions", chat(messages=[{**HELLO, "name": "ann"}, {**HELLO, "name": "bob"}])),
        ("chat_completions", chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {}}})),
        ("completions", {"prompt": "x", "max_tokens": 5, "logprobs": 5, "best_of": 1, "echo": False}),
        ("completions", {"prompt": ["a", ""]}),
        ("completions", {"prompt": [1, 2]}),
        ("completions", {"prompt": [[1], [2]]}),
        ("embeddings", {"input": "x", "encoding_format": "base64", "dimensions": 8}),
        ("embeddings", {"input": ["a", "b"]}),
        ("embeddings", {"input": list(range(3000))}),
    ],
)  # fmt: skip
def test_what_is_in_order_is_the_same_object(surface: Surface, body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    assert repaired(body, surface) is body
    assert body == before


def test_nulls_are_absent_fields() -> None:
    body = chat(temperature=None, tools=None, stop=None, made_up=None, stream=None, n=None)
    sent = repaired({name: value for name, value in body.items() if name != "n"})
    assert sent == chat()
    assert repaired(body) == chat()
    assert repaired({"prompt": "x", "suffix": None, "echo": None}, "completions") == {"prompt": "x"}


SECRET = "zebra-prompt"
KEYS = [
    "role", "content", "type", "text", "image_url", "url", "tool_calls", "tool_call_id", "id", "function", "name",
    "arguments", "parameters", "properties", "function_call", "refusal", "json_schema", "schema",
]  # fmt: skip
WORDS = [
    "user",
    "assistant",
    "system",
    "developer",
    "tool",
    "function",
    "text",
    "input_text",
    "image_url",
    "f",
    "{",
    "",
]
SCALAR = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.sampled_from([*WORDS, SECRET])
ANY = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
CALLS = st.lists(
    st.fixed_dictionaries({}, optional={"id": ANY, "type": ANY, "function": st.just(call()["function"]) | ANY})
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(WORDS[:6])},
    optional={
        "content": st.sampled_from(["a", None, [], [{"type": "input_text", "text": "b"}]]) | ANY,
        "tool_calls": CALLS | ANY,
        "tool_call_id": st.none() | st.sampled_from(["c1", ""]),
        "name": st.none() | st.just("f"),
        "function_call": st.just({"name": "f"}) | ANY,
    },
)
TOP = [
    "tools",
    "tool_choice",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "stop",
    "response_format",
    "temperature",
    "x",
]
BODY = st.builds(
    lambda messages, more: {"model": "m", "messages": messages, **more},
    st.lists(MESSAGE | st.just(HELLO), min_size=1, max_size=5),
    st.dictionaries(st.sampled_from(TOP), ANY, max_size=3),
)


@given(BODY, st.booleans())
def test_any_request_is_refused_with_its_place_or_repaired_for_good(body: dict[str, Any], images: bool) -> None:
    limits = EngineLimits(2, 4096, images)
    try:
        inference = read_inference("chat_completions", orjson.dumps(body))
    except InvalidRequest:
        return
    before = copy.deepcopy(inference.document)
    try:
        sent = normalise_chat(inference.document, "m", limits)
    except RequestRefused as error:
        check_refusal(error)
        return
    finally:
        assert inference.document == before, "the caller's document was changed"
    assert normalise_chat(sent, "m", limits) is sent, "a repaired request needs no repair"
    assert all(turn["role"] in ("system", "user", "assistant", "tool") for turn in sent["messages"])
    assert [at for at, turn in enumerate(sent["messages"]) if turn["role"] == "system"] in ([], [0])
    inference.document = sent
    assert body_for(inference, "alias")


def check_refusal(error: RequestRefused) -> None:
    assert getattr(error, "param", None), "a refusal without its place"
    assert SECRET not in str(error)
    assert len(str(error)) < 200


def test_lone_surrogates_are_no_json() -> None:
    for body in (b'{"messages":[{"role":"user","content":"\\ud800"}]}', b'{"messages":"\\udfff\\ud800"}'):
        with pytest.raises(InvalidRequest) as caught:
            read_inference("chat_completions", body)
        assert "ud800" not in str(caught.value)
