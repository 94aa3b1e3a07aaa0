"""The answering side of one request: turns the pipeline's calls into bytes on the client's connection.

It keeps the order of calls and the framing right; the socket, its back-pressure and its end belong to the connection.
"""

from __future__ import annotations

from typing import Protocol

from sbproxy.gateway.exchange import HeaderPairs, Request
from sbproxy.gateway.http.fields import StatusLines, field_lines
from sbproxy.gateway.http.head import WireRequest
from sbproxy.gateway.http.refusal import Refusal

_OPEN, _STREAMING, _DONE = range(3)
_JOIN_BYTES = 64 * 1024
_NO_BODY = frozenset((204, 304))


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


class Source(Protocol):
    """What an answer needs of the listener that its request came in on."""

    status_lines: StatusLines
    draining: bool


class Answer:
    """Implements ``Exchange``. Misuse by the handler (two answers, a write before start) is a RuntimeError.

    ``done``: the answer was sent to its end, or cut.
    """

    __slots__ = ("_chunked", "_phase", "_silent", "_socket", "_source", "bytes_out", "done", "keep_alive", "request")

    def __init__(self, socket: ClientSocket, request: WireRequest, source: Source) -> None:
        self.request: Request = request
        self.bytes_out = 0
        self.keep_alive = request.keep_alive
        self._socket = socket
        self._source = source
        self._phase = _OPEN
        self.done = False
        self._chunked = request.minor == 1
        self._silent = request.method == "HEAD"

    @property
    def untouched(self) -> bool:
        """Nothing was sent yet."""
        return self._phase == _OPEN

    @property
    def paused(self) -> bool:
        return self._socket.write_paused

    async def drain(self) -> None:
        await self._socket.drained()

    def respond(self, status: int, headers: HeaderPairs, body: bytes) -> None:
        if self._phase != _OPEN:
            raise RuntimeError("the request was answered before")
        lines = self._head(status, headers, b"" if status == 204 else b"Content-Length: %d\r\n" % len(body))
        self._phase = _DONE
        self.done = True
        if self._silent or status in _NO_BODY:
            body = b""
        if len(body) <= _JOIN_BYTES:
            lines.append(body)
            body = b""
        self._send(b"".join(lines))
        if body:
            self._send(body)

    def refuse(self, refusal: Refusal) -> None:
        """Answer with an error of the server's own and close afterwards."""
        self.keep_alive = False
        self.respond(refusal.status, refusal.headers(), refusal.body())

    def start(self, status: int, headers: HeaderPairs) -> None:
        if self._phase != _OPEN:
            raise RuntimeError("the request was answered before")
        if not self._chunked:
            self.keep_alive = False  # for HTTP/1.0 the end of the connection is the end of the body
        if status in _NO_BODY:
            self._silent = True
        framed = self._chunked and status not in _NO_BODY
        lines = self._head(status, headers, b"Transfer-Encoding: chunked\r\n" if framed else b"")
        self._phase = _STREAMING
        self._send(b"".join(lines))

    def write(self, data: bytes) -> None:
        if self._phase != _STREAMING:
            raise RuntimeError("the answer is not being streamed")
        if not data or self._silent:
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self.bytes_out += len(data)
        self._socket.send(data)

    def finish(self) -> None:
        if self._phase != _STREAMING:
            raise RuntimeError("the answer is not being streamed")
        self._phase = _DONE
        self.done = True
        if self._chunked and not self._silent:
            self._send(b"0\r\n\r\n")

    def abort(self) -> None:
        if self._phase == _DONE:
            return
        self._phase = _DONE
        self.done = True
        self.keep_alive = False
        # Only a reset tells an HTTP/1.0 client that the body it reads until the end is not whole.
        self._socket.cut(reset=not self._chunked)

    def _head(self, status: int, headers: HeaderPairs, framing: bytes) -> list[bytes]:
        source = self._source
        lines = [source.status_lines[status], *field_lines(headers), framing]
        if not self.keep_alive or source.draining:
            self.keep_alive = False
            lines.append(b"Connection: close\r\n\r\n")
        else:
            lines.append(b"\r\n" if self._chunked else b"Connection: keep-alive\r\n\r\n")
        return lines

    def _send(self, data: bytes) -> None:
        self.bytes_out += len(data)
        self._socket.send(data)
