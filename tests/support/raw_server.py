"""A TCP peer that answers each request with prepared bytes: for what a correct server never sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Respond = Callable[[int, bytes, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawServer:
    """``heads`` holds the request heads in the order they came."""

    port: int = 0
    heads: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def answer(status: str, body: bytes, *headers: str) -> bytes:
    """A whole HTTP answer that closes its connection."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def raw_server(respond: Respond) -> AsyncIterator[RawServer]:
    """``respond(number, head, writer)`` is called for each request, one a connection."""
    seen = RawServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            seen.heads.append(head)
            await respond(len(seen.heads), head, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        await server.wait_closed()
