"""The event reader gives the same events however the bytes are cut, and never grows without bound."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.client.core import sse
from sbproxy.client.core.sse import SseEvent, SseOverflow, SseReader

STREAM = (
    b": connected\n\n"
    b'id: 7\ndata: {"a":1}\n\n'
    b": heartbeat\r\n\r\n"
    b'event: gap\r\nid: 9\r\ndata: {"missed":2}\r\n\r\n'
    b"data: one\rdata: two\r\r"
    b"data:no blank\n\n"
    b"data: \xc3\xa9\xff\n\n"
)
EXPECTED = [
    SseEvent("message", '{"a":1}', "7"),
    SseEvent("gap", '{"missed":2}', "9"),
    SseEvent("message", "one\ntwo", "9"),
    SseEvent("message", "no blank", "9"),
    SseEvent("message", "\u00e9\ufffd", "9"),
]


def read(chunks: list[bytes]) -> list[SseEvent]:
    reader = SseReader()
    return [event for chunk in chunks for event in reader.feed(chunk)]


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_any_chunking_gives_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert read([STREAM[a:b] for a, b in itertools.pairwise(edges)]) == EXPECTED


def test_byte_by_byte() -> None:
    assert read([STREAM[i : i + 1] for i in range(len(STREAM))]) == EXPECTED


def test_an_event_without_its_blank_line_is_not_an_event() -> None:
    assert read([b"data: cut off"]) == []
    assert read([b"data: cut off\n"]) == []


def test_an_id_with_a_nul_is_ignored() -> None:
    reader = SseReader("3")
    assert reader.feed(b"id: 4\x005\ndata: x\n\n") == [SseEvent("message", "x", "3")]


def test_a_comment_does_not_make_an_event_and_keeps_the_resume_point() -> None:
    reader = SseReader("12")
    assert reader.feed(b": ping\n\n") == []
    assert reader.last_event_id == "12"


def test_an_endless_line_is_refused() -> None:
    reader = SseReader()
    with pytest.raises(SseOverflow, match="line"):
        for _ in range(sse.MAX_LINE_BYTES // 4096 + 2):
            reader.feed(b"x" * 4096)


def test_an_endless_event_is_refused() -> None:
    reader = SseReader()
    line = b"data: " + b"y" * 65536 + b"\n"
    with pytest.raises(SseOverflow, match="event"):
        for _ in range(sse.MAX_EVENT_BYTES // 65536 + 2):
            reader.feed(line)
