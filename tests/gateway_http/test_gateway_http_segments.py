"""Laws: however TCP cuts the bytes, the same requests and the same answers come out."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sbproxy.errors.gateway import UpstreamBroken
from sbproxy.gateway.http.body_budget import BodyBudget
from sbproxy.gateway.http.head import HeadMemory, read_head
from sbproxy.gateway.http.limits import ServerLimits
from sbproxy.gateway.http.reader import RequestReader
from sbproxy.gateway.http.refusal import Refusal
from sbproxy.gateway.http.reply import Reply

BODIES = st.lists(st.binary(max_size=40), max_size=6)
CUTS = st.lists(st.integers(min_value=0, max_value=2000), max_size=12)


def _segments(data: bytes, cuts: list[int]) -> list[bytes]:
    points = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(points) if start != end]


@st.composite
def _requests(draw) -> list[tuple[bytes, bytes]]:
    """Requests as (bytes, body)."""
    made = []
    for pieces in draw(st.lists(BODIES, min_size=1, max_size=4)):
        head = b"POST /%d?q HTTP/1.1\r\nHost: a\r\nX-Y: z\r\n" % len(made)
        if draw(st.booleans()):
            extension = draw(st.sampled_from([b"", b";a", b';a="b;c"']))
            chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces if piece)
            trailer = draw(st.sampled_from([b"", b"T: v\r\n"]))
            made.append(
                (head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n", b"".join(pieces))
            )
        else:
            body = b"".join(pieces)
            made.append((head + b"Content-Length: %d\r\n\r\n" % len(body) + body, body))
    return made


def _read(segments: list[bytes]) -> list[tuple[str, bytes]] | Refusal:
    reader, got = RequestReader(ServerLimits(), BodyBudget(1 << 20), lambda host: 1 << 20), []
    for segment in segments:
        data = segment
        while data:
            result = reader.feed(data)
            if isinstance(result, Refusal):
                return result
            if result is None:
                break
            request, data = result
            got.append((request.path, request.body))
    return got


@given(_requests(), CUTS)
def test_any_segmentation_of_a_stream_of_requests_reads_the_same(requests, cuts) -> None:
    stream = b"".join(raw for raw, _ in requests)
    assert _read(_segments(stream, cuts)) == [(f"/{at}", body) for at, (_, body) in enumerate(requests)]


@given(st.binary(max_size=300), CUTS)
def test_any_bytes_are_read_or_refused_without_an_exception(noise, cuts) -> None:
    for prefix in (b"", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"GET / HTTP/1.1\r\n"):
        assert isinstance(_read(_segments(prefix + noise, cuts)), list | Refusal)


@given(st.lists(st.sampled_from([b"A: b", b"A : b", b" b", b"A: b\0", b"Host: a", b"Content-Length: 0"]), max_size=4))
def test_a_head_reads_the_same_whether_its_lines_were_seen_before_or_not(lines) -> None:
    raw = b"\r\n".join([b"GET / HTTP/1.1", b"Host: a", *lines, b"", b""])
    first = _read([raw])
    for line in lines:  # each in a head of its own, where it is remembered if it is sound
        _read([b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n\r\n"])
    assert _read([raw]) == first
    sound = len(set(lines) - {b"A: b", b"Content-Length: 0"}) == 0 and lines.count(b"Content-Length: 0") < 2
    assert isinstance(first, Refusal) is not sound


_LINES = st.lists(
    st.sampled_from(
        [b"Host: a", b"Content-Length: %d", b"content-length: %d", b"X: Content-Length: 3", b"Content-Length: %dx",
         b"Content-Length:%d", b"Content-Length: 0%d ", b"Expect: 100-continue", b"Connection: close",
         b"Transfer-Encoding: chunked", b"Authorization: Bearer s"]
    ),
    max_size=4,
)  # fmt: skip


@given(st.lists(st.tuples(_LINES, st.integers(min_value=0, max_value=120)), min_size=2, max_size=5))
def test_a_head_reads_the_same_whatever_came_before_it_on_its_connection(heads) -> None:
    limits = ServerLimits(body_bytes=100)
    memory = HeadMemory(limits)
    for lines, length in [each for head in heads for each in (head, (head[0], head[1] // 2))]:
        fields = b"".join(line.replace(b"%d", b"%d" % length) + b"\r\n" for line in [b"Host: b", *lines])
        raw = b"POST /v1 HTTP/1.1\r\n" + fields + b"\r\n"
        got, expected = memory.read(raw), read_head(raw, limits)
        if isinstance(expected, Refusal):
            assert got == expected
            continue
        assert not isinstance(got, Refusal)
        for name in ("method", "path", "query", "host", "headers", "length", "minor", "keep_alive", "expects"):
            assert getattr(got, name) == getattr(expected, name), name
        for name, _ in expected.headers:
            assert got.header(name) == expected.header(name)
        assert got.header(b"content-length") is None


def test_a_repeated_head_keeps_its_own_length() -> None:
    memory = HeadMemory(ServerLimits(body_bytes=100))
    raw = b"POST / HTTP/1.1\r\nX: Content-Length: 3\r\nContent-Length: %d\r\nHost: a\r\n\r\n"
    for length in (5, 17, 0, 100):
        got = memory.read(raw % length)
        assert not isinstance(got, Refusal)
        assert got.length == length
        assert got.headers == [(b"x", b"Content-Length: 3"), (b"host", b"a")]


class _Socket:
    """Stands where a connection stands, for the reply alone; the real one has its tests in the pool's."""

    authority = "upstream"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.settled: list[bool] = []

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def extend(self, seconds: float) -> None: ...

    def settle(self, *, reusable: bool) -> None:
        self.settled.append(reusable)


@settings(deadline=None)
@given(BODIES, CUTS, st.sampled_from(["length", "chunked", "close"]), st.booleans(), st.booleans())
def test_any_segmentation_of_an_answer_gives_the_same_body(pieces, cuts, framing, interim, whole) -> None:
    body = b"".join(pieces)
    head = b"HTTP/1.1 102 Processing\r\nX: y\r\n\r\n" * interim + b"HTTP/1.1 200 OK\r\nX: z\r\n"
    if framing == "length":
        raw = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    elif framing == "chunked":
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
        raw = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    else:
        raw = head + b"\r\n" + body
    raw = raw if whole else raw[:-1]
    loop = asyncio.new_event_loop()
    socket = _Socket(loop)
    reply = Reply(socket, head_only=False)

    async def read() -> bytes:
        feeder = asyncio.ensure_future(feed())
        try:
            return await reply.read(10_000)
        finally:
            await feeder

    async def feed() -> None:
        for segment in _segments(raw, cuts):
            if socket.settled:
                break
            reply.feed(segment)
            await asyncio.sleep(0)
        if not socket.settled:
            reply.ended(None)

    try:
        got: bytes | None = loop.run_until_complete(read())
    except UpstreamBroken:
        got = None
    loop.close()
    if whole:
        assert got == body
        assert reply.header(b"x") == b"z"
        assert socket.settled == [framing != "close"]
    elif framing == "close" and body:
        assert got == body[:-1]  # nothing tells this apart from a whole body
    else:
        assert got is None
        assert socket.settled == [False]
