"""What a client sees of each streamed event."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory import ALIAS, chunk
from sbproxy.gateway.core.chunks import ChunkRewriter, data_of


def rewrite(*events: bytes, keep_usage: bool = False, public: str = "qwen") -> tuple[ChunkRewriter, list[Any]]:
    rewriter = ChunkRewriter(public, keep_usage=keep_usage)
    out = [rewriter.rewrite(event.removesuffix(b"\n\n")) for event in events]
    assert all(not each or each.endswith(b"\n\n") for each in out)
    return rewriter, [orjson.loads(each[6:]) if each.startswith(b"data: {") else each for each in out]


def test_the_public_name_stands_in_every_chunk() -> None:
    rewriter, out = rewrite(*(chunk(str(number)) for number in range(4)))
    assert [each["model"] for each in out] == ["qwen"] * 4
    assert [each["choices"][0]["delta"]["content"] for each in out] == ["0", "1", "2", "3"]
    assert rewriter.delivered == 4


@given(st.lists(st.text()), st.text(min_size=1), st.text(min_size=1))
def test_text_that_looks_like_a_model_field_is_left_alone(texts: list[str], alias: str, public: str) -> None:
    texts += [f'"model":"{alias}"', f'{{"model": {orjson.dumps(alias).decode()}}}', '"error"', '"usage"']
    _, out = rewrite(*(chunk(text, alias) for text in texts), public=public)
    assert [each["choices"][0]["delta"]["content"] for each in out] == texts
    assert {each["model"] for each in out} == {public}


def test_an_upstream_that_spaces_its_json_is_rewritten_too() -> None:
    spaced = b'data: {"model": "m", "choices": [{"delta": {"content": "hi"}}]}'
    _, out = rewrite(spaced, spaced)
    assert [each["model"] for each in out] == ["qwen", "qwen"]


def test_a_model_name_that_changes_in_mid_stream_is_still_hidden() -> None:
    _, out = rewrite(chunk("a"), chunk("b", "/srv/models/x.gguf"), chunk("c"))
    assert [each["model"] for each in out] == ["qwen"] * 3


class TestUsage:
    FINAL = chunk(usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7})
    INSIDE = chunk("x", usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7})

    def test_the_extra_chunk_vanishes_when_nobody_asked_for_it(self) -> None:
        rewriter, out = rewrite(chunk("a"), self.FINAL)
        assert out[1] == b""
        assert rewriter.usage == (5, 2)

    def test_usage_inside_another_chunk_is_taken_out_of_it(self) -> None:
        rewriter, out = rewrite(chunk("a"), self.INSIDE)
        assert "usage" not in out[1]
        assert out[1]["choices"][0]["delta"]["content"] == "x"
        assert rewriter.usage == (5, 2)

    def test_null_usage_is_taken_out(self) -> None:
        _, out = rewrite(chunk("a", usage=None), chunk("b", usage=None))
        assert ["usage" in each for each in out] == [False, False]

    def test_who_asked_gets_all_of_it(self) -> None:
        rewriter, out = rewrite(chunk("a", usage=None), self.FINAL, keep_usage=True)
        assert out[0]["usage"] is None
        assert out[1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        assert out[1]["model"] == "qwen"
        assert rewriter.usage == (5, 2)

    @pytest.mark.parametrize("usage", [{"prompt_tokens": -1}, {"prompt_tokens": "5"}, {"completion_tokens": True}, []])
    def test_nonsense_is_no_usage(self, usage: Any) -> None:
        rewriter, _ = rewrite(chunk("a", usage=usage))
        assert rewriter.usage is None


def test_done() -> None:
    rewriter, out = rewrite(chunk("a"), b"data: [DONE]", public="x")
    assert out[1] == b"data: [DONE]\n\n"
    assert rewriter.done
    assert rewriter.delivered == 1


def test_comments_are_ours_and_wait_for_the_first_event() -> None:
    _, out = rewrite(b": engine at /srv/x", chunk("a"), b": engine at /srv/x")
    assert out[0] == b""
    assert out[2] == b": keep-alive\n\n"


@pytest.mark.parametrize("event", [b"data: {truncated", b"data: 1", b'data: "x"', b"data: \xff"])
def test_an_event_that_is_no_object_is_a_failure(event: bytes) -> None:
    rewriter, out = rewrite(event)
    assert out == [b""]
    assert rewriter.failure == {}


def test_an_error_event_is_kept_for_the_relay() -> None:
    failure = {"error": {"code": 500, "message": "at /srv/x", "type": "server_error"}}
    rewriter, out = rewrite(chunk("a"), b"data: " + orjson.dumps(failure))
    assert out[1] == b""
    assert rewriter.failure == failure


def test_debug_fields_of_the_engine_are_dropped() -> None:
    _, out = rewrite(chunk("a", __verbose={"generation_settings": {"model": "/srv/x.gguf"}}))
    assert "__verbose" not in out[0]


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x", b"x"),
        (b"data:x", b"x"),
        (b"data:  x", b" x"),
        (b"event: e\ndata: a\nid: 1\ndata: b", b"a\nb"),
        (b"data", b"data"),
        (b": c", None),
        (b"event: ping", None),
    ],
)
def test_data_lines(event: bytes, data: bytes | None) -> None:
    assert data_of(event) == data


def test_alias_is_what_these_tests_use() -> None:
    assert ALIAS.encode() in chunk("x")
