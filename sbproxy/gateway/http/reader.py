"""Cuts the bytes of one connection into whole requests, one at a time, whatever segments they come in.

It knows no socket and no clock. What follows a request is handed back, not looked at: it is the next one's business.
"""

from __future__ import annotations

from collections.abc import Callable

from sbproxy.gateway.http import refusal
from sbproxy.gateway.http.body_budget import BodyBudget
from sbproxy.gateway.http.chunked import ChunkedBody
from sbproxy.gateway.http.head import CHUNKED, HeadMemory, WireRequest, refuse_early
from sbproxy.gateway.http.limits import ServerLimits
from sbproxy.gateway.http.refusal import Refusal

Whole = tuple[WireRequest, bytes]
BodyLimit = Callable[[str], int]
"""The largest body in bytes for a host as in ``Request.host``."""

# How much of the next request is here. Plain numbers: they are compared for every segment.
NOTHING, HEAD, BODY = range(3)


class RequestReader:
    """Feed it bytes; ``stage`` tells what it holds when it answers None.

    ``wants_continue``: the client waits for an interim answer before it sends the body that was announced.
    ``held`` is what this connection owes to the budget; call ``release`` when the request is over.
    """

    __slots__ = (
        "_body_limit", "_budget", "_chunked", "_content", "_head", "_heads", "_limits", "_pending", "_scanned",
        "_small", "held", "stage", "wants_continue",
    )  # fmt: skip

    def __init__(self, limits: ServerLimits, budget: BodyBudget, body_limit: BodyLimit) -> None:
        self.stage = NOTHING
        self.wants_continue = False
        self.held = 0
        self._limits = limits
        self._budget = budget
        self._body_limit = body_limit
        self._small = min(limits.small_body_bytes, limits.body_bytes)
        self._heads = HeadMemory(limits)
        self._pending = b""
        self._scanned = 0
        self._head: WireRequest | None = None
        self._chunked: ChunkedBody | None = None
        self._content = bytearray()

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

    def release(self) -> None:
        """The request is over, or will not come: its body is no longer held."""
        self._budget.give_back(self.held)
        self.held = 0

    def _take_head(self, data: bytes, end: int) -> Whole | Refusal | None:
        if end < 4 or end > self._limits.head_bytes:
            return self._hold(data, end)
        head = self._heads.read(data[:end])
        if type(head) is Refusal:
            return head
        body = data[end:]
        length = head.length
        if length == len(body) and length <= self._small:
            self.stage = NOTHING
            head.body = body
            return head, b""
        return self._begin_body(head, body)

    def _hold(self, data: bytes, end: int) -> Refusal | None:
        """Keep the beginning of a head, unless it can be refused already."""
        self.stage = HEAD
        self._pending = data
        self._scanned = max(0, len(data) - 3)
        return refuse_early(data if end < 4 else data[:end], self._limits)

    def _begin_body(self, head: WireRequest, rest: bytes) -> Whole | Refusal | None:
        """The body is large, or it is not what came with the head: more or less, or chunked."""
        length = head.length
        limit = self._body_limit(head.host)
        if length > limit:
            return refusal.body_too_large(limit)
        if not self._budget.fits(length, 0):
            return refusal.TOO_MANY_BODIES
        self._head = head
        self._content = bytearray()
        self._chunked = ChunkedBody(limit) if length == CHUNKED else None
        self.stage = BODY
        self.wants_continue = head.expects and not rest
        return self._take_body(head, rest) if rest or not length else None

    def _take_body(self, head: WireRequest, data: bytes) -> Whole | Refusal | None:
        if not self._budget.take(len(data), self.held):
            return refusal.TOO_MANY_BODIES
        self.held += len(data)
        chunked = self._chunked
        if chunked is not None:
            fault = chunked.feed(data)
            if fault is not None or not chunked.done:
                return fault
            return self._whole(head, chunked.content, chunked.rest)
        left = head.length - len(self._content)
        self._content += data[:left]
        return self._whole(head, self._content, data[left:]) if len(data) >= left else None

    def _whole(self, head: WireRequest, content: bytearray, rest: bytes) -> Whole:
        self.stage = NOTHING
        self._head = self._chunked = None
        self._content = bytearray()
        head.body = bytes(content)
        return head, rest
