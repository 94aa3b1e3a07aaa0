"""Odd requests through the daemon to a real llama-server: each is answered or refused with its place, never a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support import real_parts
from support.daemon import Answer, Daemon, daemon

pytestmark = [pytest.mark.e2e, pytest.mark.real_engine, pytest.mark.timeout(300)]

CONFIG = """
proxy:
  http_bind_port: {port}
  bind_address: 127.0.0.1
  admin: {enabled: true, port: {admin_port}, username: admin, password: "${SB_ADMIN_PASSWORD}"}
  model_host:
    cache: {directory: "%(cache)s"}
    deployments:
      smol: {model: smollm2-135m-instruct, pull: on_boot, warm: true, max_concurrency: 2, max_context: 1024}
origins:
  localhost:
    action:
      type: ai_proxy
      providers: [{name: local, provider_type: managed_model, deployment: smol, models: [smol]}]
"""
SECRET = "zebra-prompt"
HELLO: dict[str, Any] = {"role": "user", "content": SECRET}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function, **more}]}


def part(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [fields]}]


def shown(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **function}}]


def chats(*pairs: tuple[list[dict[str, Any]], str | None]) -> list[tuple[dict[str, Any], str | None]]:
    return [({"messages": messages}, param) for messages, param in pairs]


MESSAGES = chats(
    ([{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, HELLO], None),
    ([HELLO, {"role": "system", "content": "a"}], None),
    ([{"role": "developer", "content": "x"}, HELLO], None),
    ([HELLO, HELLO], None),
    ([HELLO, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], None),
    ([{"role": "assistant", "content": "a"}], None),
    ([{"role": "system", "content": "a"}], None),
    ([{"role": "wizard", "content": "x"}], "messages[0].role"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([HELLO, {"role": "assistant", "content": None}, HELLO], None),
    ([HELLO, {"role": "assistant", "content": "x", "tool_calls": []}, HELLO], None),
    ([{**HELLO, "name": None}], None),
    ([{**HELLO, "name": 5}], "messages[0].name"),
    ([HELLO, {"role": "assistant", "content": "x", "reasoning_content": 5}], "messages[1].reasoning_content"),
    ([HELLO, call("{"), RESULT], None),
    ([HELLO, call(""), RESULT], None),
    ([HELLO, call(None), RESULT], None),
    ([HELLO, call("[5]"), RESULT], None),
    ([HELLO, call({"a": 1}), RESULT], None),
    ([HELLO, call(5), RESULT], "messages[1].tool_calls[0].function.arguments"),
    ([HELLO, call("{}", id=None), {"role": "tool", "content": "42"}], None),
    ([HELLO, call("{}")], "messages[1].tool_calls[0]"),
    ([HELLO, RESULT], "messages[1].role"),
    (
        [
            HELLO,
            {"role": "assistant", "function_call": {"name": "f"}},
            {"role": "function", "name": "f", "content": "x"},
        ],
        None,
    ),
    (part(type="input_text", text="x"), None),
    (part(type="output_text", text="x"), None),
    (part(type="wibble"), "messages[0].content[0].type"),
    (part(type="text", text=None), "messages[0].content[0].text"),
    ([{"role": "user", "content": []}], "messages[0].content"),
    (part(type="image_url", image_url={"url": PIXEL}), "messages[0].content[0].type"),
    (part(type="input_image", image_url=PIXEL), "messages[0].content[0].type"),
    (part(type="image_url", image_url={"url": "http://127.0.0.1:1/x.png"}), "messages[0].content[0].image_url.url"),
)
PARAMETERS: list[tuple[dict[str, Any], str | None]] = [
    ({"tools": shown(description=None)}, None),
    ({"tools": shown(parameters=None)}, None),
    ({"tools": shown(parameters={})}, None),
    ({"tools": shown(parameters={"properties": {"a": {"type": "wibble"}}})}, None),
    ({"tools": []}, None),
    ({"tools": SECRET}, "tools"),
    ({"tools": shown(name=SECRET * 20)}, "tools[0].function.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, None),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": SECRET}}}, "tool_choice.function.name"),
    ({"tool_choice": "none"}, None),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"max_tokens": None, "max_completion_tokens": 3}, None),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"max_tokens": 2.5}, "max_tokens"),
    ({"n": 2}, None),
    ({"n": 3}, "n"),
    ({"temperature": SECRET}, "temperature"),
    ({"temperature": None, "stop": None, "tools": None, "logit_bias": None}, None),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"stop": ""}, "stop"),
    ({"stop": [5]}, "stop[0]"),
    ({"logit_bias": {"5": -100}}, None),
    ({"logit_bias": [5]}, "logit_bias"),
    ({"seed": -1}, None),
    ({"seed": 2**63}, "seed"),
    ({"response_format": SECRET}, "response_format"),
    ({"response_format": {"type": "json_object"}}, None),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"reasoning_format": "hidden"}, "reasoning_format"),
    ({"reasoning_effort": 5}, "reasoning_effort"),
    ({"chat_template_kwargs": SECRET}, "chat_template_kwargs"),
    ({"metadata": {"a": "b"}, "user": "u", "store": False, "service_tier": "auto"}, None),
    ({"json_schema": {"enum": list(range(20_000))}}, "json_schema"),
    ({"made_up": {"a": [None]}, "logprobs": True, "top_logprobs": 2}, None),
]
COMPLETIONS: list[tuple[dict[str, Any], str | None]] = [
    ({"prompt": ["a", "b"]}, None),
    ({"prompt": [5, 6]}, None),
    ({"prompt": [[5], [6]]}, None),
    ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [{"prompt_string": SECRET, "multimodal_data": ["AA"]}]}, "prompt[0]"),
    ({"prompt": "a", "suffix": SECRET}, "suffix"),
    ({"prompt": "a", "echo": True}, "echo"),
]
UNKNOWN_TO_US: list[dict[str, Any]] = [
    {"top_k": SECRET},
    {"samplers": [1]},
    {"grammar": "root ::= wibble("},
    {"repeat_last_n": -1},
    {"lora": SECRET},
    {"dry_sequence_breakers": []},
    {"chat_template_kwargs": {"enable_thinking": SECRET}},
    {"continue_final_message": True},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "wibble"}}}},
]
"""Parameters of this engine alone: its own refusal stands, in our words and without a place."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("odd"), CONFIG % {"cache": real_parts.cache_root()}) as handle:
        handle.start(timeout_s=240)
        port = handle.status_row("smol")["port"]
        yield handle
        row = handle.status_row("smol")
        assert (row["state"], row["port"], row["last_error"]) == ("ready", port, None), "the engine was started again"
        retried = [row for row in handle.ask("GET", "/api/requests", admin=True).json() if row.get("retry_count")]
        assert retried == []


def ask(served: Daemon, body: dict[str, Any], path: str) -> Answer:
    return served.ask("POST", path, {"model": "smol", "max_tokens": 3, **body})


@pytest.mark.parametrize(
    ("body", "param"), [*MESSAGES, *[({"messages": [HELLO], **more}, at) for more, at in PARAMETERS]]
)
@pytest.mark.parametrize("stream", [False, True])
def test_chat(served: Daemon, body: dict[str, Any], param: str | None, stream: bool) -> None:
    check(ask(served, {**body, "stream": stream}, "/v1/chat/completions"), param)


@pytest.mark.parametrize(("body", "param"), COMPLETIONS)
def test_completions(served: Daemon, body: dict[str, Any], param: str | None) -> None:
    check(ask(served, body, "/v1/completions"), param)


@pytest.mark.parametrize("more", UNKNOWN_TO_US)
def test_what_only_the_engine_knows(served: Daemon, more: dict[str, Any]) -> None:
    answer = ask(served, {"messages": [HELLO], **more}, "/v1/chat/completions")
    assert answer.status == 400
    assert answer.json()["error"]["code"] == "invalid_request"
    assert SECRET.encode() not in answer.body
    assert b"json.exception" not in answer.body


def test_bodies_that_are_no_request(served: Daemon) -> None:
    for body in (
        b'{"messages":[{"role":"user","content":"\\ud800 zebra-prompt"}]}',
        b'{"a":' + b"[" * 20_000,
        b"{'zebra-prompt'",
    ):
        answer = served.ask("POST", "/v1/chat/completions", body)
        assert (answer.status, SECRET.encode() in answer.body) == (400, False)


def check(answer: Answer, param: str | None) -> None:
    if param is None:
        assert answer.status == 200, answer.body
        assert b'"choices"' in answer.body
        return
    assert answer.status == 400, answer.body
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert SECRET not in error["message"]
