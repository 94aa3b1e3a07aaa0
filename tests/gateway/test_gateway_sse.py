"""Laws of the event reader: how the bytes are cut on the wire changes nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.gateway.core.sse import EventTooLarge, SseReader

WIRE = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"data: x", b"data", b": c", b"\xef\xbb\xbf", b"\xef", b"{}", b""])
).map(b"".join)


def read(pieces: list[bytes], limit: int = 1 << 20) -> list[bytes]:
    reader = SseReader(limit)
    return [event for piece in pieces for event in reader.feed(piece)]


def model(wire: bytes) -> list[bytes]:
    """The definition, on the whole text: lines, blank line ends the event, an unfinished event does not count."""
    text = wire.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    *lines, _ = text.split(b"\n")
    events: list[list[bytes]] = [[]]
    for line in lines:
        if line:
            events[-1].append(line)
        elif events[-1]:
            events.append([])
    return [b"\n".join(event) for event in events[:-1]]


@given(WIRE, st.lists(st.integers(0, 60)))
def test_any_cutting_gives_the_events_of_the_definition(wire: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    pieces = [wire[start:end] for start, end in itertools.pairwise(edges)]
    assert read(pieces) == model(wire)
    assert read([wire[at : at + 1] for at in range(len(wire))]) == model(wire)


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        (b"data: 1\n\ndata: 2\n\n", [b"data: 1", b"data: 2"]),
        (b"data: 1\r\n\r\n", [b"data: 1"]),
        (b"data: 1\r\rdata: 2\n\r\n", [b"data: 1", b"data: 2"]),
        (b"\n\n\n\ndata: 1\n\n\n\n", [b"data: 1"]),
        (b"data: a\ndata: b\n\n", [b"data: a\ndata: b"]),
        (b": only a comment\n\n", [b": only a comment"]),
        (b"data: never ended\n", []),
    ],
)
def test_line_ends(wire: bytes, events: list[bytes]) -> None:
    assert read([wire]) == events


def test_an_event_may_be_as_long_as_the_limit_and_no_longer() -> None:
    assert read([b"x" * 10 + b"\n\n"], limit=10) == [b"x" * 10]
    assert read([b"x"] * 10 + [b"\n", b"\n"], limit=10) == [b"x" * 10]
    with pytest.raises(EventTooLarge):
        read([b"x" * 11 + b"\n\n"], limit=10)
    with pytest.raises(EventTooLarge):
        read([b"data: 1\n\n" + b"x" * 11 + b"\n\n"], limit=10)


def test_an_event_that_never_ends_is_not_collected_for_ever() -> None:
    reader = SseReader(1000)
    with pytest.raises(EventTooLarge):
        for _ in range(1003):
            reader.feed(b"x")


def test_pending_tells_a_cut_event() -> None:
    reader = SseReader(100)
    reader.feed(b"data: 1\n\n")
    assert not reader.pending
    reader.feed(b"data: 2")
    assert reader.pending
