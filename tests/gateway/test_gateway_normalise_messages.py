"""What the messages of a chat become, and which are refused, where."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.memory import chat
from gateway.normalising import HELLO, call, called, parts, refused, result, said
from sbproxy.errors.gateway import RemoteContentRefused, UnsupportedContent
from sbproxy.gateway.core.normalise import EngineLimits


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

    @pytest.mark.parametrize("depth", [300, 900])
    def test_arguments_that_are_too_deep_to_send(self, depth: int) -> None:
        body = chat(messages=[HELLO, called(call('{"a":' + "[" * depth + "]" * depth + "}")), result()])
        assert refused(body) == "messages[1].tool_calls[0].function.arguments"

    @pytest.mark.parametrize("depth", [100, 5000])
    def test_arguments_that_are_deep_or_beyond_parsing(self, depth: int) -> None:
        sent = said(HELLO, called(call('{"a":' + "[" * depth + "]" * depth + "}")), result())
        arguments = orjson.loads(sent[1]["tool_calls"][0]["function"]["arguments"])
        assert set(arguments) == ({"a"} if depth == 100 else {"unparsed_arguments"})

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
