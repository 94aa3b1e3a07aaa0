"""Cuts the bytes of one connection into whole requests, one at a time, whatever segments they come in.

It knows no socket and no clock. What follows a request is handed back, not looked at: it is the next one's business.
"""

from __future__ import annotations

from sbproxy.gateway.http.chunked import ChunkedBody
from sbproxy.gateway.http.head import CHUNKED, HeadMemory, WireRequest, refuse_early
from sbproxy.gateway.http.limits import ServerLimits
from sbproxy.gateway.http.refusal import Refusal

Whole = tuple[WireRequest, bytes]


# How much of the next request is here. Plain numbers: they are compared for every segment.
NOTHING, HEAD, BODY = range(3)


class RequestReader:
    """Feed it bytes; ``stage`` tells what it holds when it answers None.

    ``wants_continue``: the client waits for an interim answer before it sends the body that was announced.
    """

    __slots__ = (
        "_body", "_head", "_heads", "_left", "_limits", "_pending", "_pieces", "_scanned", "stage", "wants_continue",
    )  # fmt: skip

    def __init__(self, limits: ServerLimits) -> None:
        self.stage = NOTHING
        self.wants_continue = False
        self._limits = limits
        self._heads = HeadMemory(limits)
        self._pending = b""
        self._scanned = 0
        self._head: WireRequest | None = None
        self._body: ChunkedBody | None = None
        self._pieces: list[bytes] = []
        self._left = 0

    def feed(self, data: bytes) -> Whole | Refusal | None:
        """A whole request as (request, bytes that follow), why there will be none, or None for more bytes."""
        if self.stage != NOTHING:
            return self._feed_more(data)
        if data.startswith(b"\r\n"):
            # RFC 9112 2.2: an empty line before a request line is to be ignored; some old clients end bodies with one.
            data = data[2:]
            if not data:
                return None
        return self._take_head(data, data.find(b"\r\n\r\n") + 4)

    def _feed_more(self, data: bytes) -> Whole | Refusal | None:
        if self._head is not None:
            return self._take_body(self._head, data)
        data, self._pending = self._pending + data, b""
        return self._take_head(data, data.find(b"\r\n\r\n", self._scanned) + 4)

    def _take_head(self, data: bytes, end: int) -> Whole | Refusal | None:
        if end < 4 or end > self._limits.head_bytes:
            return self._hold(data, end)
        head = self._heads.read(data[:end])
        if type(head) is Refusal:
            return head
        body = data[end:]
        length = head.length
        if length == len(body):
            self.stage = NOTHING
            head.body = body
            return head, b""
        return self._take_part(head, body)

    def _take_part(self, head: WireRequest, rest: bytes) -> Whole | Refusal | None:
        """The body is not what came with the head: more or less, or chunked."""
        length = head.length
        if 0 <= length < len(rest):
            self.stage = NOTHING
            head.body = rest[:length]
            return head, rest[length:]
        self.stage = BODY
        self._head = head
        self._left = length
        self._body = ChunkedBody(self._limits.body_bytes) if length == CHUNKED else None
        self.wants_continue = head.expects and not rest
        return self._take_body(head, rest) if rest else None

    def _hold(self, data: bytes, end: int) -> Refusal | None:
        """Keep the beginning of a head, unless it can be refused already."""
        self.stage = HEAD
        self._pending = data
        self._scanned = max(0, len(data) - 3)
        return refuse_early(data if end < 4 else data[:end], self._limits)

    def _take_body(self, head: WireRequest, data: bytes) -> Whole | Refusal | None:
        chunked = self._body
        if chunked is not None:
            fault = chunked.feed(data)
            if fault is not None or not chunked.done:
                return fault
            return self._whole(head, chunked.pieces, chunked.rest)
        self._left -= len(data)
        if self._left > 0:
            self._pieces.append(data)
            return None
        rest = b""
        if self._left:
            data, rest = data[: self._left], data[self._left :]
        self._pieces.append(data)
        return self._whole(head, self._pieces, rest)

    def _whole(self, head: WireRequest, pieces: list[bytes], rest: bytes) -> Whole:
        self.stage = NOTHING
        self._head = self._body = None
        self._pieces = []
        head.body = b"".join(pieces)
        return head, rest
