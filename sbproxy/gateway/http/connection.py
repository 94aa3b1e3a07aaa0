"""One client connection: whole requests to the handler, one answer at a time, in order.

One task runs the handler for all requests of the connection: to make a task costs as much as to read a head.

``reader`` decides what a request is, ``answer`` writes what is sent; the listener owns the sweep and all limits.
A client that half-closes (sends FIN while it waits) counts as gone: nothing else tells a departed client from it.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
import traceback
from time import perf_counter
from typing import Protocol, cast

from sbproxy.gateway.exchange import Handler
from sbproxy.gateway.http import refusal
from sbproxy.gateway.http.answer import Answer
from sbproxy.gateway.http.body_budget import BodyBudget
from sbproxy.gateway.http.fields import StatusLines, field_lines
from sbproxy.gateway.http.head import WireRequest
from sbproxy.gateway.http.limits import ServerLimits
from sbproxy.gateway.http.reader import BODY, NOTHING, BodyLimit, RequestReader
from sbproxy.gateway.http.refusal import Refusal

_log = logging.getLogger(__name__)
_NEVER = float("inf")
# READING waits for a whole request, ANSWERING has a task, FLUSHING waits until the client has taken enough of the
# answer to be given more, CLOSING only flushes or lingers.
_READING, _ANSWERING, _FLUSHING, _CLOSING = range(4)
_LOGGED_FRAMES = 6
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Listener(Protocol):
    """What a connection needs of the server that it came in on."""

    handler: Handler
    limits: ServerLimits
    bodies: BodyBudget
    body_limit: BodyLimit
    status_lines: StatusLines
    draining: bool
    active_requests: int
    loop: asyncio.AbstractEventLoop

    def opened(self, connection: ServerConnection) -> bool:
        """Register; False when there are too many."""
        ...

    def closed(self, connection: ServerConnection) -> None: ...

    def tell_quiet(self) -> None:
        """A request ended during a drain."""
        ...


class ServerConnection(asyncio.Protocol):
    """``deadline`` is a ``perf_counter`` time at which the listener's sweep calls :meth:`expire`."""

    __slots__ = (
        "_answer", "_client_ip", "_drain_waiter", "_limits", "_listener", "_next", "_pending", "_phase", "_reader",
        "_received_at", "_stage", "_started", "_task", "_transport", "_unsent", "deadline", "read_paused",
        "write_paused",
    )  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._transport: asyncio.Transport | None = None
        self._client_ip = ""
        self._phase = _READING
        self._reader = _reader_for(listener)
        self._stage = NOTHING
        self._pending = b""
        self._received_at = 0.0
        self._answer: Answer | None = None
        # The task parks in ``_next`` between requests; ``_started`` is false until the handler has the one at hand.
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self._started = False
        self._drain_waiter: asyncio.Future[None] | None = None
        self._unsent = 0
        self.deadline = _NEVER
        self.read_paused = False
        self.write_paused = False

    # --- the transport's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, but not its type.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._client_ip = peer[0] if isinstance(peer, tuple) else ""
        high = self._limits.write_buffer_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        # The wait for the first request is bounded like a head: a client that connects has something to say.
        self.deadline = perf_counter() + self._limits.head_timeout_s
        if not self._listener.opened(self):
            self._refuse(refusal.TOO_MANY_CONNECTIONS)

    def data_received(self, data: bytes) -> None:
        if self._phase == _READING:
            self._read(data)
        elif self._phase != _CLOSING:
            self._pending += data
            if len(self._pending) > self._limits.read_ahead_bytes:
                self._pause_reading()

    def eof_received(self) -> bool:
        if self._phase == _ANSWERING and self._answer is not None and not self._answer.done:
            self.leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._phase = _CLOSING
        self._pending = b""
        self.write_paused = False
        self._wake_drain()
        if self._answer is None:
            self._reader.release()
        self._cancel_unanswered()
        self._wake_task()
        self._listener.closed(self)

    def pause_writing(self) -> None:
        self.write_paused = True
        self._watch_unsent()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._phase == _ANSWERING:
            self.deadline = _NEVER
        elif self._phase == _FLUSHING:
            self._await_request()
        self._wake_drain()

    # --- reading --------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        if self._stage == NOTHING:
            self._received_at = perf_counter()
        got = self._reader.feed(data)
        if got is None:
            self._await_more(len(data))
        elif type(got) is Refusal:
            self._refuse(got)
        else:
            self._dispatch(*got)

    def _await_more(self, received: int) -> None:
        """A part of a request is here: move the deadline."""
        stage = self._reader.stage
        if stage == BODY and self._stage == BODY:
            self.deadline += received / self._limits.body_bytes_per_s
        elif stage != self._stage:
            self._stage = stage
            limits = self._limits
            self.deadline = perf_counter() + (limits.body_timeout_s if stage == BODY else limits.head_timeout_s)
            if stage == BODY and self._reader.wants_continue:
                self.send(_CONTINUE)

    def _dispatch(self, request: WireRequest, rest: bytes) -> None:
        self._phase = _ANSWERING
        self._stage = NOTHING
        self.deadline = _NEVER
        request.client_ip = self._client_ip
        request.received_at = self._received_at
        if rest:
            self._pending = rest
            if len(rest) > self._limits.read_ahead_bytes:
                self._pause_reading()
        listener = self._listener
        self._answer = Answer(self, request, listener)
        listener.active_requests += 1
        self._started = False
        if self._task is None:
            self._task = listener.loop.create_task(self._serve())
        else:
            self._wake_task()

    def _pause_reading(self) -> None:
        if not self.read_paused and self._transport is not None:
            self.read_paused = True
            self._transport.pause_reading()

    # --- answering ------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """The connection's task: gives each request to the handler until the connection is over."""
        loop, handler = self._listener.loop, self._listener.handler
        try:
            while True:
                answer = self._answer
                if answer is None:
                    if self._phase == _CLOSING:
                        return
                    waiter = self._next = loop.create_future()
                    await waiter
                    continue
                self._started = True
                try:
                    await handler(answer)
                except Exception as error:  # noqa: BLE001 - a task's top
                    # Neither the exception's text nor locals: both may hold a piece of the request.
                    _log.error("answering failed with %s at %s", type(error).__name__, _where(error))
                    if answer.untouched:
                        answer.refuse(refusal.HANDLER_FAILED)
                except asyncio.CancelledError:
                    answer.keep_alive = False  # the task ends here, and the connection with it
                    raise
                finally:
                    self._settle(answer)
        finally:
            self._task = self._next = None

    def _wake_task(self) -> None:
        """There is a request for the task, or there will be none; it sees for itself when it is not parked."""
        waiter, self._next = self._next, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _settle(self, answer: Answer) -> None:
        self._answer = None
        if self._reader.held:
            self._reader.release()
        listener = self._listener
        listener.active_requests -= 1
        if listener.draining:
            listener.tell_quiet()
        if self._transport is None or self._phase == _CLOSING:
            return
        if not answer.done:
            self._complete(answer)
        if not answer.keep_alive or listener.draining:
            self._close()
        elif self.write_paused:
            self._phase = _FLUSHING
            self._watch_unsent()
        else:
            self._await_request()

    def _complete(self, answer: Answer) -> None:
        """End what the handler left unfinished."""
        if answer.untouched:
            _log.error("the handler returned without an answer to %s", answer.request.method)
            answer.refuse(refusal.HANDLER_FAILED)
        else:
            answer.abort()

    def _await_request(self) -> None:
        self._phase = _READING
        self.deadline = perf_counter() + self._limits.idle_timeout_s
        if self._pending:
            pending, self._pending = self._pending, b""
            self._read(pending)
        if self.read_paused and len(self._pending) <= self._limits.read_ahead_bytes and self._transport is not None:
            self.read_paused = False
            self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        if self._phase != _CLOSING and self._transport is not None:
            self._transport.write(data)

    async def drained(self) -> None:
        while self.write_paused:
            if self._drain_waiter is None:
                self._drain_waiter = self._listener.loop.create_future()
            await self._drain_waiter

    def _wake_drain(self) -> None:
        waiter, self._drain_waiter = self._drain_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- ending ---------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """The deadline has passed."""
        transport = self._transport
        if transport is None:
            self.deadline = _NEVER
        elif self._phase == _READING and self._stage != NOTHING:
            self._refuse(refusal.BODY_TIMEOUT if self._stage == BODY else refusal.HEAD_TIMEOUT)
        elif self._unsent > 0 and 0 < transport.get_write_buffer_size() < self._unsent:
            self._watch_unsent()
        else:
            self.leave()

    def look_for_departure(self) -> None:
        """Ask the kernel whether the client left; a connection whose reading is paused is not told."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None or not hasattr(select, "POLLRDHUP"):
            return
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP)
        if poll.poll(0):
            self.leave()

    def leave(self) -> None:
        """Treat the client as gone: end the task of an unfinished answer and drop the socket at once."""
        self._phase = _CLOSING
        self._cancel_unanswered()
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Part of a drain. A request that has begun to arrive is still served."""
        if self._phase == _READING and self._stage == NOTHING:
            self._close()

    def cut(self, *, reset: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        if not reset:
            self._close()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._phase = _CLOSING
        transport.abort()

    def _cancel_unanswered(self) -> None:
        answer = self._answer
        if self._task is None or answer is None or answer.done:
            return
        self._task.cancel()
        if not self._started:  # a task cancelled before its first step never reaches its own end
            self._settle(answer)

    def _refuse(self, fault: Refusal) -> None:
        """Answer an unfit request and close, but go on reading for a moment: an early reset would eat the answer."""
        self._phase = _CLOSING
        self._pending = b""
        self._reader.release()
        self._reader = _reader_for(self._listener)
        transport = self._transport
        if transport is None:
            return
        body = fault.body()
        first = self._listener.status_lines[fault.status]
        last = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        transport.write(b"".join((first, *field_lines(fault.headers()), last, body)))
        self.deadline = perf_counter() + self._limits.linger_timeout_s
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _close(self) -> None:
        """Close as soon as everything is sent; a client that takes nothing of it is dropped by the sweep."""
        self._phase = _CLOSING
        self._watch_unsent()
        if self._transport is not None:
            self._transport.close()

    def _watch_unsent(self) -> None:
        self._unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        self.deadline = perf_counter() + self._limits.write_timeout_s


def _reader_for(listener: Listener) -> RequestReader:
    return RequestReader(listener.limits, listener.bodies, listener.body_limit)


def _where(error: BaseException) -> str:
    """The innermost frames, the deepest first."""
    frames = traceback.extract_tb(error.__traceback__)[-_LOGGED_FRAMES:]
    return " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(frames))
