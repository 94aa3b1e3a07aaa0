"""One connection to an engine or provider: the socket under one reply at a time.

It writes requests, feeds the reply, and goes back to its pool or away. Parsing is ``reply``'s, choosing is ``pool``'s.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Protocol, cast

from sbproxy.errors.gateway import UpstreamTimeout
from sbproxy.gateway.exchange import NEVER
from sbproxy.gateway.http.reply import Reply


class Keeper(Protocol):
    """What a connection needs of its place in the pool."""

    authority: str

    def finished(self, connection: UpstreamConnection, *, reusable: bool) -> None:
        """The connection is free: keep it if it may be reused, else close it."""
        ...

    def lost(self, connection: UpstreamConnection) -> None: ...


class UpstreamConnection(asyncio.Protocol):
    """``deadline`` is a ``perf_counter`` time: of the reply while there is one, of idleness otherwise."""

    __slots__ = ("_keeper", "_paused", "_reply", "_timeout_s", "_transport", "_until", "authority", "deadline", "loop")

    def __init__(self, keeper: Keeper, loop: asyncio.AbstractEventLoop) -> None:
        self.authority = keeper.authority
        self.loop = loop
        self.deadline = NEVER
        self._keeper = keeper
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        # Of the reply: the longest silence in seconds, and the time at which it must be whole.
        self._timeout_s: float | None = None
        self._until = NEVER
        self._paused = False

    # --- the pool's side ------------------------------------------------------------------------------------------

    def usable(self) -> bool:
        """Open as far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    def request(self, head: bytes, body: bytes, head_only: bool, timeout_s: float | None, until: float) -> Reply:
        """Write a request; its reply begins to wait."""
        reply = self._reply = Reply(self, head_only)
        self._timeout_s = timeout_s
        self._until = until
        self._await_more()
        transport = self._transport
        if transport is None:
            reply.ended("the connection was closed")
        elif len(body) <= 64 * 1024:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        return reply

    def expire(self) -> None:
        """The deadline has passed."""
        if self._reply is None:
            self.abort()
        elif self._paused and self.deadline != self._until:
            self.deadline = self._until  # the silence is ours
        else:
            self._reply.fail(UpstreamTimeout(self.authority, self._timeout_s or 0.0))

    def _await_more(self) -> None:
        """The wait for more of the reply begins."""
        until = self._until
        self.deadline = until if self._timeout_s is None else min(until, perf_counter() + self._timeout_s)

    def abort(self) -> None:
        """Close at once; a reply that waits breaks."""
        if self._transport is not None:
            self._transport.abort()

    # --- the reply's side -----------------------------------------------------------------------------------------

    def pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._await_more()
            self._transport.resume_reading()

    def extend(self, seconds: float) -> None:
        self._until += seconds
        self._await_more()

    def settle(self, *, reusable: bool) -> None:
        self._reply = None
        self.deadline = NEVER
        transport = self._transport
        # An answer that came before its request was written out leaves the rest of that request in the way.
        if transport is None or (reusable and transport.get_write_buffer_size()):
            reusable = False
        if not reusable:
            self.abort()
        elif self._paused:
            self.resume()
        self._keeper.finished(self, reusable=reusable)

    # --- the transport's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, but not its type.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.abort()  # nobody asked for it
            return
        reply.feed(data)
        if self._reply is reply and self._timeout_s is not None:
            self._await_more()

    def eof_received(self) -> bool:
        if self._reply is not None:
            self._reply.ended(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._reply is not None:
            self._reply.ended(None if exc is None else f"{type(exc).__name__} on the connection")
        self._keeper.lost(self)
