"""The answering side of one request: turns the pipeline's calls into bytes on the client's connection.

It keeps the order of calls and the framing right; the socket, its back-pressure and its end belong to the connection.
"""

from __future__ import annotations

from typing import Protocol

from sbproxy.gateway.exchange import HeaderPairs, Request
from sbproxy.gateway.http.fields import StatusLines, message_head
from sbproxy.gateway.http.refusal import Refusal

_OPEN, _STREAMING, _DONE = range(3)
_JOIN_BYTES = 64 * 1024
_NO_BODY = frozenset((204, 304))
JSON_HEADERS = ((b"content-type", b"application/json"),)


class ClientSocket(Protocol):
    """What an answer needs of the connection that it is sent on."""

    write_paused: bool

    def send(self, data: bytes) -> None:
        """Hand bytes to the socket; nothing happens when the client is gone."""
        ...

    async def drained(self) -> None: ...

    def cut(self, *, reset: bool) -> None:
        """Close without ending the answer; ``reset`` makes the end visible where closing is how a body ends."""
        ...

    def may_stay(self) -> bool:
        """Whether the listener still keeps connections open after an answer."""
        ...


class Answer:
    """Implements ``Exchange``. Misuse by the handler (two answers, a write before start) is a RuntimeError."""

    __slots__ = (
        "_chunked", "_head_only", "_minor", "_phase", "_silent", "_socket", "_status_lines",
        "bytes_out", "keep_alive", "request",
    )  # fmt: skip

    def __init__(
        self, socket: ClientSocket, request: Request, minor: int, keep_alive: bool, status_lines: StatusLines
    ) -> None:
        self.request = request
        self.bytes_out = 0
        self.keep_alive = keep_alive
        self._socket = socket
        self._minor = minor
        self._status_lines = status_lines
        self._head_only = request.method == "HEAD"
        self._phase = _OPEN
        self._chunked = False
        self._silent = False

    @property
    def untouched(self) -> bool:
        """Nothing was sent yet."""
        return self._phase == _OPEN

    @property
    def done(self) -> bool:
        """The answer was sent to its end, or cut."""
        return self._phase == _DONE

    @property
    def paused(self) -> bool:
        return self._socket.write_paused

    async def drain(self) -> None:
        await self._socket.drained()

    def respond(self, status: int, headers: HeaderPairs, body: bytes) -> None:
        if self._phase != _OPEN:
            raise RuntimeError("the request was answered before")
        framing = b"" if status == 204 else b"Content-Length: %d\r\n" % len(body)
        head = self._head(status, headers, framing)
        self._phase = _DONE
        if self._head_only or status in _NO_BODY or not body:
            self._send(head)
        elif len(body) <= _JOIN_BYTES:
            self._send(head + body)
        else:
            self._send(head)
            self._send(body)

    def refuse(self, refusal: Refusal) -> None:
        """Answer with an error of the server's own and close afterwards."""
        self.keep_alive = False
        self.respond(refusal.status, JSON_HEADERS, refusal.body())

    def start(self, status: int, headers: HeaderPairs) -> None:
        if self._phase != _OPEN:
            raise RuntimeError("the request was answered before")
        bodyless = status in _NO_BODY
        self._chunked = self._minor == 1 and not bodyless
        self._silent = self._head_only or bodyless
        if self._minor == 0:
            self.keep_alive = False
        head = self._head(status, headers, b"Transfer-Encoding: chunked\r\n" if self._chunked else b"")
        self._phase = _STREAMING
        self._send(head)

    def write(self, data: bytes) -> None:
        if self._phase != _STREAMING:
            raise RuntimeError("the answer is not being streamed")
        if not data or self._silent:
            return
        self._send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def finish(self) -> None:
        if self._phase != _STREAMING:
            raise RuntimeError("the answer is not being streamed")
        self._phase = _DONE
        if self._chunked and not self._silent:
            self._send(b"0\r\n\r\n")

    def abort(self) -> None:
        if self._phase == _DONE:
            return
        self._phase = _DONE
        self.keep_alive = False
        # Only a reset tells an HTTP/1.0 client that the body it reads until the end is not whole.
        self._socket.cut(reset=not self._chunked)

    def _head(self, status: int, headers: HeaderPairs, framing: bytes) -> bytes:
        if self.keep_alive and not self._socket.may_stay():
            self.keep_alive = False
        lines = 2 if framing else 1
        if not self.keep_alive:
            last = framing + b"Connection: close\r\n\r\n"
            lines += 1
        elif self._minor == 0:
            last = framing + b"Connection: keep-alive\r\n\r\n"
            lines += 1
        else:
            last = framing + b"\r\n"
        return message_head(self._status_lines.get(status), 2, headers, last, lines)

    def _send(self, data: bytes) -> None:
        self.bytes_out += len(data)
        self._socket.send(data)
