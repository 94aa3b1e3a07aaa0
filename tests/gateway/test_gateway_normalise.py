"""Which requests to an engine are repaired, into what, and which are refused, where."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory import chat
from sbproxy.errors.gateway import InvalidRequest, RemoteContentRefused, RequestRefused, UnsupportedContent
from sbproxy.gateway.core.normalise import EngineLimits, normalise, normalise_chat
from sbproxy.gateway.core.request_body import body_for, read_inference
from sbproxy.gateway.core.surfaces import Surface

LIMITS = EngineLimits(slots=2, context_tokens=4096)
HELLO = {"role": "user", "content": "Hello?"}


def said(*messages: dict[str, Any], images: bool = False) -> list[dict[str, Any]]:
    """The messages that are sent for these."""
    document = {"messages": list(messages)}
    before = copy.deepcopy(document)
    sent: list[dict[str, Any]] = normalise_chat(document, "qwen", EngineLimits(images=images))["messages"]
    assert document == before, "the caller's document was changed"
    return sent


def repaired(body: dict[str, Any], surface: Surface = "chat_completions", limits: EngineLimits = LIMITS) -> Any:
    return normalise(surface, body, "qwen", limits)


def refused(body: dict[str, Any], surface: Surface = "chat_completions", limits: EngineLimits = LIMITS) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        repaired(body, surface, limits)
    return caught.value.param


def parts(*given: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(given)}


def called(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **more}


def call(arguments: Any = "{}", call_id: str | None = "c1", name: str = "f") -> dict[str, Any]:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if call_id is None else {"id": call_id, **made}


def result(call_id: str | None = "c1", content: Any = "42") -> dict[str, Any]:
    made = {"role": "tool", "content": content}
    return made if call_id is None else {"role": "tool", "tool_call_id": call_id, "content": content}


WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}


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


class TestContent:
    @pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
    def test_texts_of_every_api_become_one_text(self, kind: str) -> None:
        assert said(parts({"type": kind, "text": "a"}, {"type": "text", "text": "b"})) == [
            {"role": "user", "content": "a\nb"}
        ]

    def test_marks_beside_a_text_go(self) -> None:
        part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
        assert said(parts(part)) == [{"role": "user", "content": "a"}]

    def test_a_refusal_is_what_an_assistant_said(self) -> None:
        refusal = [{"type": "refusal", "refusal": "I will not."}]
        assert said(HELLO, {"role": "assistant", "content": refusal})[1]["content"] == "I will not."
        assert refused(chat(messages=[{"role": "user", "content": refusal}])) == "messages[0].content[0].type"

    @pytest.mark.parametrize("content", [None, [], ...])
    @pytest.mark.parametrize("role", ["user", "system", "developer"])
    def test_nothing_said_is_refused(self, content: Any, role: str) -> None:
        message = {"role": role} if content is ... else {"role": role, "content": content}
        assert refused(chat(messages=[HELLO, message])) == "messages[1].content"

    @pytest.mark.parametrize("extra", [{}, {"tool_calls": []}, {"tool_calls": None, "function_call": None}])
    @pytest.mark.parametrize("content", [None, [], "", ...])
    def test_an_assistant_that_said_nothing(self, extra: dict[str, Any], content: Any) -> None:
        message = (
            {"role": "assistant", **extra} if content is ... else {"role": "assistant", "content": content, **extra}
        )
        assert said(HELLO, message, {"role": "user", "content": "b"})[1] == {"role": "assistant", "content": ""}

    def test_the_answer_of_an_engine_can_be_sent_back(self) -> None:
        answer = {
            "role": "assistant", "content": None, "refusal": None, "annotations": None, "audio": None,
            "function_call": None, "tool_calls": [], "reasoning_content": "hm",
        }  # fmt: skip
        assert said(HELLO, answer)[1] == {"role": "assistant", "content": "", "reasoning_content": "hm"}

    @pytest.mark.parametrize(
        ("part", "param"),
        [
            ({"type": "wibble"}, "type"),
            ({"type": "text"}, "text"),
            ({"type": "text", "text": 5}, "text"),
            ({"type": "text", "text": None}, "text"),
            ({"type": "thinking", "thinking": "x"}, "type"),
        ],
    )
    def test_parts_of_no_kind(self, part: dict[str, Any], param: str) -> None:
        assert refused(chat(messages=[parts({"type": "text", "text": "a"}, part)])) == f"messages[0].content[1].{param}"

    @pytest.mark.parametrize("name", ["name", "reasoning_content", "tool_call_id", "refusal"])
    def test_texts_of_a_message(self, name: str) -> None:
        assert refused(chat(messages=[{**HELLO, name: 5}])) == f"messages[0].{name}"
        assert said({**HELLO, name: None}) == [HELLO]

    @pytest.mark.parametrize("name", ["tool_calls", "function_call"])
    def test_only_an_assistant_calls(self, name: str) -> None:
        assert refused(chat(messages=[{**HELLO, name: []}])) == f"messages[0].{name}"


PIXEL = "data:image/png;base64,iVBORw0KGgo="


class TestMedia:
    @pytest.mark.parametrize(
        ("part", "kind"),
        [
            ({"type": "image_url", "image_url": {"url": PIXEL}}, "image"),
            ({"type": "image_url", "image_url": PIXEL}, "image"),
            ({"type": "image_url"}, "image"),
            ({"type": "image_url", "image_url": [PIXEL]}, "image"),
            ({"type": "input_image", "image_url": PIXEL}, "image"),
            ({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}, "audio"),
            ({"type": "file", "file": {"file_id": "x"}}, "file"),
            ({"type": "input_file", "file_id": "x"}, "file"),
        ],
    )
    def test_a_text_model_takes_text(self, part: dict[str, Any], kind: str) -> None:
        with pytest.raises(UnsupportedContent) as caught:
            said(HELLO, parts({"type": "text", "text": "a"}, part))
        assert (caught.value.model, caught.value.kind) == ("qwen", kind)
        assert caught.value.param == "messages[1].content[1].type"

    @pytest.mark.parametrize("images", [True, False])
    @pytest.mark.parametrize(
        "url", ["http://169.254.169.254/", "HTTPS://a/b", "file:///etc/passwd", "//a/b", "a.png", ""]
    )
    def test_nothing_is_fetched(self, url: str, images: bool) -> None:
        for part, param in (
            ({"type": "image_url", "image_url": {"url": url}}, "image_url.url"),
            ({"type": "image_url", "image_url": url}, "image_url.url"),
            ({"type": "input_image", "image_url": url}, "image_url"),
            ({"type": "video_url", "video_url": {"url": url}}, "video_url.url"),
        ):
            with pytest.raises(RemoteContentRefused) as caught:
                said(parts(part), images=images)
            assert caught.value.param == f"messages[0].content[0].{param}"

    def test_a_model_that_sees_gets_one_form_of_image(self) -> None:
        image = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}
        flat = {"type": "input_image", "image_url": PIXEL, "detail": "low"}
        text = {"type": "text", "text": "a"}
        assert said(parts({"type": "input_text", "text": "a"}, flat), images=True) == [parts(text, image)]
        bare = {"type": "image_url", "image_url": {"url": PIXEL}}
        assert said(parts({"type": "image_url", "image_url": PIXEL}), images=True) == [parts(bare)]

    @pytest.mark.parametrize(
        "url", ["data:text/html;base64,AA", "data:image/png,AA", "data:image/png;base64,", "data:", 5]
    )
    def test_an_image_must_be_one(self, url: Any) -> None:
        body = chat(messages=[parts({"type": "image_url", "image_url": {"url": url}})])
        assert refused(body, limits=EngineLimits(images=True)) == "messages[0].content[0].image_url.url"

    @pytest.mark.parametrize("role", ["system", "assistant", "tool"])
    def test_only_users_show_images(self, role: str) -> None:
        content = [{"type": "image_url", "image_url": {"url": PIXEL}}]
        message = {"role": role, "content": content} if role != "tool" else result(content=content)
        body = chat(messages=[HELLO, called(call()), message]) if role == "tool" else chat(messages=[HELLO, message])
        assert str(refused(body, limits=EngineLimits(images=True))).endswith(".content[0].type")

    def test_an_answer_in_sound_is_no_text(self) -> None:
        with pytest.raises(UnsupportedContent) as caught:
            said(HELLO, {"role": "assistant", "content": None, "audio": {"id": "audio_1"}})
        assert caught.value.param == "messages[1].audio"


class TestTurns:
    def test_instructions_become_one_in_front(self) -> None:
        assert said(
            {"role": "system", "content": "a"},
            HELLO,
            {"role": "developer", "content": [{"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "y"},
            {"role": "system", "content": ""},
        ) == [{"role": "system", "content": "a\n\nb"}, HELLO, {"role": "assistant", "content": "y"}]

    def test_a_developer_is_the_system(self) -> None:
        assert said({"role": "developer", "content": "a"}, HELLO) == [{"role": "system", "content": "a"}, HELLO]

    @pytest.mark.parametrize("role", ["user", "assistant"])
    def test_one_speaker_has_one_turn(self, role: str) -> None:
        other = HELLO if role == "assistant" else {"role": "assistant", "content": "y"}
        assert said(
            other, {"role": role, "content": "a"}, {"role": role, "content": ""}, {"role": role, "content": "b"}
        ) == [
            other,
            {"role": role, "content": "a\n\nb"},
        ]

    @pytest.mark.parametrize("role", ["wizard", "", "User", "ipython", "model"])
    def test_unknown_roles(self, role: str) -> None:
        assert refused(chat(messages=[HELLO, {"role": role, "content": "x"}])) == "messages[1].role"


class TestToolHistory:
    @pytest.mark.parametrize(
        ("arguments", "sent"),
        [
            ("", "{}"),
            (None, "{}"),
            ("null", "{}"),
            ({"a": [1]}, '{"a":[1]}'),
            ('{"a": 1}', '{"a": 1}'),
            ("{", '{"unparsed_arguments":"{"}'),
            ("5", '{"unparsed_arguments":"5"}'),
            ('["x"]', '{"unparsed_arguments":"[\\"x\\"]"}'),
            ('{"a":"\\ud800"}', '{"unparsed_arguments":"{\\"a\\":\\"\\\\ud800\\"}"}'),
            ("NaN", '{"unparsed_arguments":"NaN"}'),
        ],
    )
    def test_arguments_are_an_object(self, arguments: Any, sent: str) -> None:
        made = said(HELLO, called(call(arguments)), result())[1]["tool_calls"][0]["function"]["arguments"]
        assert made == sent
        assert type(orjson.loads(made)) is dict

    @pytest.mark.parametrize("arguments", [5, True, ["x"], 1.5])
    def test_arguments_that_are_no_text(self, arguments: Any) -> None:
        body = chat(messages=[HELLO, called(call(arguments)), result()])
        assert refused(body) == "messages[1].tool_calls[0].function.arguments"

    @pytest.mark.parametrize("depth", [100, 300, 900, 5000])
    def test_arguments_that_are_deep(self, depth: int) -> None:
        body = chat(messages=[HELLO, called(call('{"a":' + "[" * depth + "]" * depth + "}")), result()])
        try:
            sent = repaired(body)["messages"][1]["tool_calls"][0]["function"]["arguments"]
        except InvalidRequest as error:
            assert error.param == "messages[1].tool_calls[0].function.arguments"
            assert depth > 100
        else:
            assert orjson.dumps(orjson.loads(sent))

    def test_ids_are_made_and_matched_in_order(self) -> None:
        history = said(HELLO, called(call(call_id=None), call(call_id="")), result(None), result(""))
        made = [each["id"] for each in history[1]["tool_calls"]]
        assert made == [each["tool_call_id"] for each in history[2:]] == ["call00000", "call00001"]
        assert all(each.isalnum() and len(each) == 9 for each in made)

    def test_ids_are_the_same_when_the_conversation_goes_on(self) -> None:
        first = [HELLO, called(call(call_id=None)), result(None)]
        later = [*first, called(call(call_id=None)), result(None)]
        assert said(*later)[:3] == said(*first)
        assert said(*later)[3]["tool_calls"][0]["id"] == "call00001"

    def test_an_id_only_on_the_answer_finds_the_call_without_one(self) -> None:
        history = said(HELLO, called(call(), call(call_id=None)), result("zzz"), result())
        assert [each["tool_call_id"] for each in history[2:]] == ["call00000", "c1"]

    def test_given_ids_stay(self) -> None:
        history = said(HELLO, called(call(call_id="functions.f:0")), result("functions.f:0"))
        assert history[1]["tool_calls"][0]["id"] == history[2]["tool_call_id"] == "functions.f:0"

    def test_the_older_form(self) -> None:
        assert said(
            HELLO,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
            {"role": "function", "name": "f", "content": "42"},
        ) == [
            HELLO,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "call00000", "content": "42", "name": "f"},
        ]

    def test_the_content_of_an_answer_is_text(self) -> None:
        assert said(HELLO, called(call()), result(content=[{"type": "text", "text": "a"}]))[2]["content"] == "a"

    @pytest.mark.parametrize(
        ("messages", "param"),
        [
            ([result()], "messages[1].role"),
            ([called(call()), result("c2")], "messages[2].tool_call_id"),
            ([called(call()), result(5)], "messages[2].tool_call_id"),  # type: ignore[arg-type]
            ([called(call()), result(), result()], "messages[3].role"),
            ([called(call()), HELLO], "messages[1].tool_calls[0]"),
            ([called(call()), called(call())], "messages[1].tool_calls[0]"),
            ([called(call(), call(call_id="c2")), result()], "messages[1].tool_calls[1]"),
            ([called(call()), result(content=None)], "messages[2].content"),
            ([called(call()), result(content=[])], "messages[2].content"),
            ([called("x")], "messages[1].tool_calls[0]"),  # type: ignore[arg-type]
            ([called({"id": "c", "type": "custom"})], "messages[1].tool_calls[0].type"),
            ([called({"id": "c", "type": "function"})], "messages[1].tool_calls[0].function"),
            ([called({"id": "c", "function": {"name": ""}})], "messages[1].tool_calls[0].function.name"),
            ([called({"id": 5, "function": {"name": "f"}})], "messages[1].tool_calls[0].id"),
            ([{**called(), "tool_calls": "x"}], "messages[1].tool_calls"),
            ([called(call(), function_call={"name": "f"})], "messages[1].function_call"),
            ([{"role": "assistant", "function_call": "f"}], "messages[1].function_call"),
            ([{"role": "assistant", "function_call": {"name": 5}}], "messages[1].function_call.name"),
            (
                [{"role": "assistant", "function_call": {"name": "f"}}, {"role": "function", "content": "x"}],
                "messages[2].name",
            ),
        ],
    )
    def test_refused(self, messages: list[Any], param: str) -> None:
        assert refused(chat(messages=[HELLO, *messages])) == param


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
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "n", "schema": "s"}},
         "response_format.json_schema.schema"),
        ("metadata", {"a": 1}, None), ("metadata", "x", None), ("store", True, None), ("modalities", ["audio"], None),
        ("audio", {"voice": "x"}, None), ("web_search_options", {}, None), ("reasoning_effort", 5, None),
        ("reasoning_effort", "wibble", None), ("reasoning_format", "hidden", None), ("reasoning_format", 5, None),
        ("chat_template_kwargs", "x", None), ("verbosity", "loud", None), ("service_tier", 5, None),
        ("prediction", "x", None),
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
        assert getattr(error, "param", None), "a refusal without its place"
        assert SECRET not in str(error)
        assert len(str(error)) < 200
        return
    finally:
        assert inference.document == before, "the caller's document was changed"
    assert normalise_chat(sent, "m", limits) is sent, "a repaired request needs no repair"
    assert all(turn["role"] in ("system", "user", "assistant", "tool") for turn in sent["messages"])
    assert [at for at, turn in enumerate(sent["messages"]) if turn["role"] == "system"] in ([], [0])
    inference.document = sent
    assert body_for(inference, "alias")


def test_lone_surrogates_are_no_json() -> None:
    for body in (b'{"messages":[{"role":"user","content":"\\ud800"}]}', b'{"messages":"\\udfff\\ud800"}'):
        with pytest.raises(InvalidRequest) as caught:
            read_inference("chat_completions", body)
        assert "ud800" not in str(caught.value)
