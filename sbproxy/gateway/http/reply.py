"""One answer of an upstream while it arrives: frames it, holds what was not taken yet, and slows the socket down.

The connection that it comes on feeds it and is told what to do with the socket; reuse and retries are the pool's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import httptools

from sbproxy.errors.gateway import UpstreamBroken, UpstreamError, UpstreamTooLarge
from sbproxy.gateway.exchange import HeaderPairs
from sbproxy.gateway.http.response import CHUNKED, UNTIL_CLOSE, ResponseHead, read_response_head

_HEAD_BYTES = 64 * 1024
_INTERIM_ANSWERS = 16
_READ_AHEAD_BYTES = 64 * 1024
_NO_FIELDS: Mapping[bytes, bytes] = {}


class UpstreamSocket(Protocol):
    """What a reply needs of its connection."""

    authority: str
    loop: asyncio.AbstractEventLoop

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def extend(self, seconds: float) -> None: ...

    def settle(self, *, reusable: bool) -> None:
        """The answer is over; the connection is reused or closed. Called once."""
        ...


class Reply:
    """Implements ``UpstreamResponse``. A ``fault`` is raised only after the pieces before it were taken."""

    __slots__ = (
        "_complete", "_fields", "_head_only", "_interim", "_into", "_left", "_parser", "_pieces", "_reusable",
        "_settled", "_size", "_socket", "_start", "_stopped", "_waiter", "_wake_above", "fault", "headers", "status",
    )  # fmt: skip

    def __init__(self, socket: UpstreamSocket, head_only: bool) -> None:
        self.status = 0
        self.headers: HeaderPairs = ()
        self._fields: Mapping[bytes, bytes] = _NO_FIELDS
        self._socket = socket
        self._head_only = head_only
        self._start = b""
        self._interim = 0
        self._left = 0
        self._parser: httptools.HttpResponseParser | None = None
        self._reusable = False
        self._complete = False
        self._settled = False
        self.fault: UpstreamError | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        # Who takes pieces as they come, and whether it has just said that it wants no more.
        self._into: Callable[[bytes], bool] | None = None
        self._stopped = False
        # The waiter wakes when more bytes than this lie here after the head: -1 for the head itself, 0 for any piece.
        self._wake_above = -1

    def header(self, name: bytes) -> bytes | None:
        return self._fields.get(name)

    # --- the connection's side ------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Bytes of the answer."""
        if not self.status:
            self._take_head(self._start + data if self._start else data)
        elif self._parser is not None:
            self._take_chunked(self._parser, data)
        else:
            self._take_plain(data)
        self._after()

    def ended(self, reason: str | None) -> None:
        """The connection closed; ``reason`` says why unless the upstream closed it in good order."""
        if self.status and self._left == UNTIL_CLOSE and reason is None:
            self._complete = True
        self._reusable = False
        if not self._complete:
            self._fail(reason or "the connection was closed")
        self._after()

    def fail(self, fault: UpstreamError) -> None:
        """End the answer with a fault of the connection's own, such as a time-out."""
        if not self._complete and self.fault is None:
            self.fault = fault
        self._after()

    # --- reading --------------------------------------------------------------------------------------------------

    def _take_head(self, data: bytes) -> None:
        end = data.find(b"\r\n\r\n") + 4
        if end < 4 or end > _HEAD_BYTES:
            self._start = data
            if len(data) > _HEAD_BYTES:
                self._fail("its head is too large")
            elif not data.startswith(b"HTTP/1."[: len(data)]):
                self._fail("it is not HTTP/1.1")
            return
        head = read_response_head(data[:end], self._head_only)
        if type(head) is not ResponseHead:
            self._fail(head)
            return
        self._start = b""
        if head.status < 200:
            self._interim += 1
            if self._interim > _INTERIM_ANSWERS:
                self._fail("it has too many interim heads")
            elif end < len(data):
                self._take_head(data[end:])
            return
        self._fields = head.fields
        self.headers = head.headers
        self.status = head.status
        self._reusable = head.keep_alive
        self._left = head.length
        if head.length == CHUNKED:
            self._parser = httptools.HttpResponseParser(self)
            self._take_chunked(self._parser, data)
            return
        data = data[end:]
        if data and len(data) == head.length:  # as nearly always: the whole answer in one piece
            self._pieces.append(data)
            self._size = head.length
            self._complete = True
        else:
            self._take_plain(data)

    def _take_plain(self, data: bytes) -> None:
        left = self._left
        if left == UNTIL_CLOSE:
            if data:
                self._pieces.append(data)
                self._size += len(data)
            return
        size = len(data)
        if size > left:
            self._reusable = False  # bytes that nobody asked for follow the answer
            data = data[:left]
            size = left
        self._left = left - size
        if size:
            self._pieces.append(data)
            self._size += size
        if size == left:
            self._complete = True

    def _take_chunked(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._complete:
                self._reusable = False  # what follows the answer is not HTTP; the answer itself is whole
            else:
                self._fail(f"its body is malformed ({error})")

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self._complete:
            self._reusable = False

    def on_body(self, data: bytes) -> None:
        """Called by the parser for each piece of a chunk."""
        if not self._complete:
            self._pieces.append(data)
            self._size += len(data)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._complete = True

    # --- the caller's side ----------------------------------------------------------------------------------------

    def pending(self) -> bool:
        """The head is not here and may still come; wait with ``more``."""
        return not self.status and self.fault is None

    def proves_stale(self) -> bool:
        """The connection turned out to be closed before any byte of the answer; raises if it broke otherwise."""
        if self.fault is None or self._pieces:
            return False
        if not self.status and not self._start and not self._interim and isinstance(self.fault, UpstreamBroken):
            return True
        raise self.fault

    def check(self) -> None:
        """Raise what became of the answer, if it did not come."""
        if self.fault is not None and not self._pieces:
            raise self.fault

    async def read(self, limit: int) -> bytes:
        if not self._complete:
            if self._left + self._size > limit:
                self._refuse_size(limit)
            self._wake_above = limit
            self._socket.resume()
            while not self._complete:
                if self.fault is not None:
                    raise self.fault
                if self._size > limit:
                    break
                await self.more()
        if self._size > limit:
            self._refuse_size(limit)
        return self.take()

    def _refuse_size(self, limit: int) -> None:
        self.close()
        raise UpstreamTooLarge(self._socket.authority, limit)

    async def pour(self, into: Callable[[bytes], bool]) -> bool:
        while True:
            while self._pieces:
                if not into(self.take()):
                    return True
            if self.fault is not None:
                raise self.fault
            if self._complete:
                return False
            self._wake_above = 0
            # The pieces go to ``into`` from the socket's callback: waking a task for each costs as much as relaying it.
            self._into = into
            try:
                await self.waiter()
            except asyncio.CancelledError:
                self.close()
                raise
            finally:
                self._into = None
            if self._stopped:
                self._stopped = False
                return True

    def take(self) -> bytes:
        """Everything that lies here."""
        pieces = self._pieces
        if not pieces:
            return b""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        if self._size > _READ_AHEAD_BYTES and not self._settled:
            self._socket.resume()
        self._size = 0
        return data

    def extend(self, seconds: float) -> None:
        if not self._settled:
            self._socket.extend(seconds)

    def close(self) -> None:
        if not self._settled:
            self._fail("it was given up")
            self._settle(reusable=False)

    async def more(self) -> None:
        """Wait until there is more to take, or nothing more will come. Cancelling it gives the answer up."""
        try:
            await self.waiter()
        except asyncio.CancelledError:
            self.close()
            raise

    def waiter(self) -> asyncio.Future[None]:
        """Is done when ``more`` would return. Who awaits it and is cancelled must ``close``."""
        waiter = self._waiter = self._socket.loop.create_future()
        return waiter

    # --- within ---------------------------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        if self.fault is None:
            self.fault = UpstreamBroken(self._socket.authority, reason)

    def _after(self) -> None:
        """Bring socket and waiter in line with what is known now."""
        into = self._into
        if into is not None and self._pieces:
            if into(self.take()):
                if not self._complete and self.fault is None:
                    return
            else:
                self._into = None
                self._stopped = True
        if self._complete or self.fault is not None:
            self._settle(reusable=self._reusable and self.fault is None)
        elif self._size > _READ_AHEAD_BYTES and self._size > self._wake_above:
            self._socket.pause()
        waiter = self._waiter
        if waiter is not None and (self._settled or self._stopped or (self.status and self._size > self._wake_above)):
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _settle(self, *, reusable: bool) -> None:
        if not self._settled:
            self._settled = True
            self._parser = None  # it and this object hold each other
            self._socket.settle(reusable=reusable)
