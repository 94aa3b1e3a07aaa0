"""Raw clients and scripted upstreams for the data plane's wire tests: bytes in, bytes out, nothing parsed for them."""

# ruff: noqa: ASYNC110 - waiting for conditions of the code under test, which sets no event
from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from sbproxy.gateway.exchange import UpstreamResponse

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawClient:
    """One TCP connection to the server under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, tls: ssl.SSLContext | None = None) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """One answer framed by Content-Length or chunks: status, lower-case fields, body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head[:-4].split(b"\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
        if fields.get(b"transfer-encoding") == b"chunked":
            body = b""
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += await self.reader.readexactly(size)
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readexactly(2) == b"\r\n"
        else:
            body = await self.reader.readexactly(int(fields.get(b"content-length", b"0")))
        return int(lines[0].split(b" ")[1]), fields, body

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        return await self.reader.read()

    async def closed(self) -> bool:
        """The server closes without another byte."""
        return await self.reader.read() == b""

    async def leave(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return

    def vanish(self) -> None:
        self.writer.transport.abort()


class ScriptedUpstream:
    """A TCP server that runs a script on each connection and counts what happens to them."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.accepted = 0
        self.open = 0
        self.requests: list[bytes] = []
        self.changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        self.open += 1
        self.changed.set()
        try:
            await self.script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self.changed.set()
            writer.close()
            self._tasks.discard(task)

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """Read one request with Content-Length (or without a body) and remember it."""
        head = await reader.readuntil(b"\r\n\r\n")
        body = b""
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                body = await reader.readexactly(int(line.split(b":")[1]))
        self.requests.append(head + body)
        return head + body

    async def until(self, condition: Callable[[], bool], within_s: float = 1.0) -> None:
        """Wait until ``condition`` holds; TimeoutError when it does not come in time."""
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        while self._tasks:
            await asyncio.sleep(0.005)


async def pieces_of(reply: UpstreamResponse) -> AsyncIterator[bytes]:
    """The body in the pieces it comes in, each asked for on its own."""
    taken: list[bytes] = []

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return False

    while await reply.pour(take):
        yield taken.pop()
