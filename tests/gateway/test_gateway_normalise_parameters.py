"""What tools, choices and parameters become, and which are refused, where."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.memory import chat
from gateway.normalising import TIME, WEATHER, refused, repaired
from sbproxy.gateway.core.normalise import EngineLimits
from sbproxy.gateway.core.surfaces import Surface


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


EMPTY = {"type": "object", "properties": {}}


class TestTools:
    @pytest.mark.parametrize(
        ("given_tool", "sent"),
        [
            (tool(), tool(parameters=EMPTY)),
            (tool(description=None, parameters=None, strict=None), tool(parameters=EMPTY)),
            (tool(parameters={}), tool(parameters=EMPTY)),
            (tool(parameters={"type": "object"}), tool(parameters=EMPTY)),
            ({"type": "function", "name": "f", "description": "d"}, tool(description="d", parameters=EMPTY)),
        ],
    )
    def test_repaired(self, given_tool: dict[str, Any], sent: dict[str, Any]) -> None:
        assert repaired(chat(tools=[given_tool]))["tools"] == [sent]

    def test_no_tools_are_none(self) -> None:
        assert repaired(chat(tools=[], tool_choice="auto", parallel_tool_calls=True)) == chat()
        assert repaired(chat(tools=None, tool_choice=None)) == chat()
        assert repaired(chat(tool_choice="none")) == chat()

    def test_a_choice_of_one_is_that_one_and_required(self) -> None:
        for choice in ({"type": "function", "function": {"name": "time"}}, {"type": "function", "name": "time"}):
            sent = repaired(chat(tools=[WEATHER, TIME], tool_choice=choice))
            assert (sent["tools"], sent["tool_choice"]) == ([TIME], "required")

    @pytest.mark.parametrize(
        ("more", "param"),
        [
            ({"tools": "x"}, "tools"),
            ({"tools": {"a": 1}}, "tools"),
            ({"tools": ["x"]}, "tools[0]"),
            ({"tools": [tool(name=f"f{n}") for n in range(129)]}, "tools"),
            ({"tools": [WEATHER, {"type": "web_search"}]}, "tools[1].type"),
            ({"tools": [{"type": "function"}]}, "tools[0].function"),
            ({"tools": [{"type": "function", "function": "f"}]}, "tools[0].function"),
            ({"tools": [tool(name="a b")]}, "tools[0].function.name"),
            ({"tools": [tool(name="")]}, "tools[0].function.name"),
            ({"tools": [tool(name="x" * 65)]}, "tools[0].function.name"),
            ({"tools": [tool(name=None)]}, "tools[0].function.name"),
            ({"tools": [{"type": "function", "name": "a.b"}]}, "tools[0].name"),
            ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
            ({"tools": [tool(description=5)]}, "tools[0].function.description"),
            ({"tools": [tool(strict="yes")]}, "tools[0].function.strict"),
            ({"tools": [tool(parameters="x")]}, "tools[0].function.parameters"),
            ({"tools": [tool(parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
            ({"tools": [tool(parameters={"type": None})]}, "tools[0].function.parameters.type"),
            ({"tools": [tool(parameters={"properties": []})]}, "tools[0].function.parameters.properties"),
            ({"tools": [WEATHER], "tool_choice": "wibble"}, "tool_choice"),
            ({"tools": [WEATHER], "tool_choice": 5}, "tool_choice"),
            ({"tools": [WEATHER], "tool_choice": {"type": "custom"}}, "tool_choice"),
            ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
            ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": 5}}, "tool_choice.function.name"),
            (
                {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}},
                "tool_choice.function.name",
            ),
            ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice.function.name"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tools": [WEATHER], "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
            ({"functions": [{"name": "f"}]}, "functions"),
            ({"function_call": "auto"}, "function_call"),
        ],
    )
    def test_refused(self, more: dict[str, Any], param: str) -> None:
        assert refused(chat(**more)) == param


class TestTokens:
    def test_one_name_for_all_engines(self) -> None:
        assert repaired(chat(max_completion_tokens=5)) == chat(max_tokens=5)
        assert repaired(chat(max_completion_tokens=5, max_tokens=5)) == chat(max_tokens=5)
        assert repaired(chat(max_completion_tokens=None, max_tokens=5)) == chat(max_tokens=5)

    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_more_than_the_context_is_all_of_it(self, name: str) -> None:
        for most in (4096, 100_000, 2**31 - 1):
            assert repaired(chat(**{name: most})) == chat()
        assert repaired(chat(max_tokens=100_000), limits=EngineLimits()) == chat(max_tokens=100_000)

    @pytest.mark.parametrize("most", [0, -1, 2**31, 2**63, 2.0, "4", True, [4], {}])
    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_refused(self, name: str, most: Any) -> None:
        assert refused(chat(**{name: most})) == name

    def test_two_that_differ(self) -> None:
        assert refused(chat(max_tokens=5, max_completion_tokens=6)) == "max_tokens"

    @pytest.mark.parametrize("surface", ["chat_completions", "completions"])
    def test_more_answers_than_slots(self, surface: Surface) -> None:
        body = chat(n=3) if surface == "chat_completions" else {"prompt": "x", "n": 3}
        assert refused(body, surface) == "n"
        assert repaired(body, surface, EngineLimits()) is body


MANY = {
    "type": "object",
    "properties": {"a": {"enum": list(range(600))}, "b": {"anyOf": [{"const": n} for n in range(401)]}},
}
WIDE = {"type": "object", "properties": {f"p{n}": {} for n in range(5001)}}


@pytest.mark.parametrize("large", [MANY, WIDE, {"type": "object", "$defs": {"x": [MANY]}}])
def test_schemas_that_would_hold_an_engine_up(large: dict[str, Any]) -> None:
    assert refused(chat(tools=[WEATHER, tool(parameters=large)])) == "tools[1].function.parameters"
    assert refused(chat(response_format=schema({"name": "n", "schema": large}))) == "response_format.json_schema.schema"
    assert refused(chat(json_schema=large)) == "json_schema"
    assert refused({"prompt": "x", "json_schema": large}, "completions") == "json_schema"


def test_schemas_that_are_large_but_bounded() -> None:
    body = chat(response_format=schema({"name": "n", "schema": {"enum": list(range(1000))}}))
    assert repaired(body) is body


def schema(inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": inner}


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("temperature", "hot", None), ("temperature", True, None), ("temperature", 2.1, None),
        ("temperature", -0.1, None), ("temperature", [1], None), ("top_p", 1.5, None), ("top_p", "1", None),
        ("presence_penalty", 3, None), ("frequency_penalty", -3, None), ("seed", 1.5, None), ("seed", "x", None),
        ("seed", 2**63, None), ("stop", 5, None), ("stop", "", None), ("stop", ["a", 5], "stop[1]"),
        ("stop", list("abcde"), None), ("stop", {"a": 1}, None), ("logit_bias", [1], None), ("logit_bias", "x", None),
        ("logit_bias", {"x": 1}, None), ("logit_bias", {"5": "x"}, "logit_bias.5"),
        ("logit_bias", {"5": 101}, "logit_bias.5"), ("user", 5, None), ("logprobs", "x", None), ("logprobs", 1, None),
        ("top_logprobs", 3, None), ("top_logprobs", -3, None), ("response_format", "json", None),
        ("response_format", {"type": "xml"}, "response_format.type"), ("response_format", {}, "response_format.type"),
        ("response_format", {"type": ["text"]}, "response_format.type"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
        ("response_format", schema({"schema": {}}), "response_format.json_schema.name"),
        ("response_format", schema({"name": "n"}), "response_format.json_schema.schema"),
        ("response_format", schema({"name": "n", "schema": "s"}), "response_format.json_schema.schema"),
        ("metadata", {"a": 1}, None), ("metadata", "x", None), ("store", True, None), ("modalities", ["audio"], None),
        ("audio", {"voice": "x"}, None), ("web_search_options", {}, None), ("reasoning_effort", 5, None),
        ("reasoning_effort", "wibble", None), ("reasoning_format", "hidden", None), ("reasoning_format", 5, None),
        ("chat_template_kwargs", "x", None), ("verbosity", "loud", None), ("service_tier", 5, None),
        ("prediction", "x", None), ("grammar", 5, None), ("grammar", "x" * 16385, None), ("json_schema", "x", None),
    ],
)  # fmt: skip
def test_parameters_of_a_chat(name: str, value: Any, param: str | None) -> None:
    assert refused(chat(**{name: value})) == (param or name)


@pytest.mark.parametrize(
    ("surface", "body", "param"),
    [
        ("completions", {"prompt": ["a", 5]}, "prompt[1]"),
        ("completions", {"prompt": [1.5]}, "prompt[0]"),
        ("completions", {"prompt": [True]}, "prompt[0]"),
        ("completions", {"prompt": [{"prompt_string": "x", "multimodal_data": ["AA"]}]}, "prompt[0]"),
        ("completions", {"prompt": [-5]}, "prompt[0]"),
        ("completions", {"prompt": [1, 2**40]}, "prompt[1]"),
        ("completions", {"prompt": [[]]}, "prompt[0]"),
        ("completions", {"prompt": [[1], ["a"]]}, "prompt[1][0]"),
        ("completions", {"prompt": ["a"] * 2049}, "prompt"),
        ("completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("completions", {"prompt": "a", "echo": True}, "echo"),
        ("completions", {"prompt": "a", "echo": "x"}, "echo"),
        ("completions", {"prompt": "a", "best_of": 2}, "best_of"),
        ("completions", {"prompt": "a", "logprobs": True}, "logprobs"),
        ("completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("completions", {"prompt": "a", "max_completion_tokens": 5}, "max_completion_tokens"),
        ("embeddings", {"input": ["a", ""]}, "input[1]"),
        ("embeddings", {"input": ["a"] * 2049}, "input"),
        ("embeddings", {"input": [None]}, "input[0]"),
        ("embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ("embeddings", {"input": "a", "dimensions": 0}, "dimensions"),
        ("embeddings", {"input": "a", "user": 5}, "user"),
    ],
)
def test_other_surfaces(surface: Surface, body: dict[str, Any], param: str) -> None:
    assert refused(body, surface) == param
