"""Sends server-sent events: numbering, heartbeats, gaps, and an end for readers that left or do not read.

What the events are, and when there is nothing more to say, the routes decide.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

import orjson
from aiohttp import web

from sbproxy.admin.error_boundary import STREAMING
from sbproxy.errors.admin import InvalidEventId, OwnStreamsExhausted, StreamsExhausted

WRITE_TIMEOUT_S = 20.0
"""A reader that takes nothing for so long is cut off."""
_LOOK_AROUND_S = 1.0
_FIRST_LOOK_S = 0.05
MAX_EVENT_ID = 9_007_199_254_740_991


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One message. ``number`` is None for a state that has no place in the sequence; ``last`` ends the stream."""

    number: int | None
    data: bytes
    last: bool = False

    def encode(self) -> bytes:
        head = b"" if self.number is None else b"id: %d\n" % self.number
        return head + b"data: " + self.data + b"\n\n"


@dataclass(frozen=True, slots=True)
class StreamGap:
    """Events ``first`` to ``last`` (both included) will not come; the reader must fetch the state anew."""

    first: int
    last: int
    resume: int | None = None
    """What the reader resumes after, where that is not ``last``: what is known of the missing events follows. How many
    are missing is not said then, because an earlier process did not use all of its numbers."""

    def encode(self) -> bytes:
        told = {"from": self.first, "to": self.last}
        if self.resume is None:
            told["missed"] = self.last - self.first + 1
        resume = self.last if self.resume is None else self.resume
        return b"event: gap\nid: %d\ndata: %b\n\n" % (resume, orjson.dumps(told))


Item = StreamEvent | StreamGap
Quiet = Callable[[], Awaitable[StreamEvent | None]]
"""Asked when nothing has come for a while: a last event that the source will not deliver, or None."""


def last_event_id(request: web.Request) -> int | None:
    """Raises InvalidEventId."""
    text = request.headers.get("Last-Event-ID")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= MAX_EVENT_ID):
        raise InvalidEventId(MAX_EVENT_ID)
    return int(text)


class EventStreams:
    """All open streams of a listener: at most ``max_streams``, and ``max_own`` of one identity."""

    def __init__(
        self, max_streams: int, max_own: int, heartbeat_s: float, write_timeout_s: float = WRITE_TIMEOUT_S
    ) -> None:
        self._max_streams = max_streams
        self._max_own = max_own
        self._heartbeat_s = heartbeat_s
        self._write_timeout_s = write_timeout_s
        self._closing = asyncio.Event()
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return self._open.total()

    async def close(self, _app: web.Application) -> None:
        """``on_shutdown``: every stream ends at its next step, which is now."""
        self._closing.set()

    async def serve(
        self, request: web.Request, owner: str, source: AsyncIterator[Item], quiet: Quiet | None = None
    ) -> web.StreamResponse:
        """Send ``source`` until it ends, the reader leaves, or the listener stops.

        Raises StreamsExhausted, or OwnStreamsExhausted for the identity ``owner``.
        """
        response = web.StreamResponse(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        with self._place(owner):
            try:
                await response.prepare(request)
                request[STREAMING] = response
                await self._write(response, b": connected\n\n")
                async with aclosing(self._steps(request, source, quiet)) as steps:
                    async for piece in steps:
                        await self._write(response, piece)
            except (ConnectionError, TimeoutError):
                # The reader is gone or stuck; there is nobody to tell.
                if request.transport is not None:
                    request.transport.abort()
            finally:
                await cast("AsyncGenerator[Item, None]", source).aclose()
        return response

    @contextmanager
    def _place(self, owner: str) -> Iterator[None]:
        if self.open >= self._max_streams:
            raise StreamsExhausted(self._max_streams)
        if self._open[owner] >= self._max_own:
            raise OwnStreamsExhausted(owner, self._max_own)
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1

    async def _steps(
        self, request: web.Request, source: AsyncIterator[Item], quiet: Quiet | None
    ) -> AsyncGenerator[bytes, None]:
        """The pieces to write; ends when the stream does."""
        idle_s = 0.0
        async with _Pending(source, self._closing) as pending:
            while not self._closing.is_set() and _connected(request):
                # The first look comes early: a source that has nothing to say need not keep its reader waiting.
                step_s = min(_LOOK_AROUND_S if idle_s else _FIRST_LOOK_S, self._heartbeat_s)
                if await pending.wait(step_s):
                    idle_s = 0.0
                    item = pending.take()
                    if item is not None:
                        yield item.encode()
                    elif quiet is not None and (final := await quiet()) is not None:
                        yield final.encode()
                    if item is None or (isinstance(item, StreamEvent) and item.last):
                        return
                    continue
                idle_s += step_s
                if quiet is not None and (final := await quiet()) is not None:
                    yield final.encode()
                    return
                if idle_s >= self._heartbeat_s:
                    idle_s = 0.0
                    yield b": heartbeat\n\n"

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        # Not wait_for: in Python 3.11 it can swallow a cancellation that comes as the write ends.
        async with asyncio.timeout(self._write_timeout_s):
            await response.write(data)


class _Pending:
    """The next item of a source, awaited in a task: waiting may time out, the item must not get lost with it."""

    def __init__(self, source: AsyncIterator[Item], closing: asyncio.Event) -> None:
        self._source = source
        self._closing = asyncio.ensure_future(closing.wait())
        self._next = asyncio.ensure_future(_next(source))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        both: set[asyncio.Future[Any]] = {self._next, self._closing}
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)

    async def wait(self, seconds: float) -> bool:
        """Whether an item (or the end) is here."""
        both: set[asyncio.Future[Any]] = {self._next, self._closing}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return self._next.done()

    def take(self) -> Item | None:
        """The item, None at the end of the source; the wait for the following one begins."""
        item = self._next.result()
        if item is not None:
            self._next = asyncio.ensure_future(_next(self._source))
        return item


async def _next(source: AsyncIterator[Item]) -> Item | None:
    return await anext(source, None)


def _connected(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()
