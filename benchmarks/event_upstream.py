"""An upstream that streams chat completion chunks, and the clients that count them on the other side of a gateway.

Run as ``python benchmarks/event_upstream.py PORT TICK_SECONDS``; ``benchmarks/gateway.py`` uses both. With a tick of
2 ms each event crosses the gateway in a segment of its own; with 0 they come as fast as they go and share segments.
"""

from __future__ import annotations

import asyncio
import sys

import orjson
import uvloop

EVENTS = 1000
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_REQUEST_BODY = orjson.dumps(
    {
        "model": "bench",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "y"}],
    }
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(**fields: object) -> bytes:
    shape = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "bench"}
    return _chunk(b"data: " + orjson.dumps(shape | fields) + b"\n\n")


_TOKEN = _event(choices=[{"index": 0, "delta": {"content": " word"}, "finish_reason": None}])
_USAGE = _event(choices=[], usage={"prompt_tokens": 10, "completion_tokens": EVENTS, "total_tokens": EVENTS + 10})
_END = _USAGE + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tick_s: float) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lowered = head.lower()
            at = lowered.index(b"content-length:")
            await reader.readexactly(int(lowered[at + 15 : lowered.index(b"\r\n", at)]))
            writer.write(_HEAD)
            for _ in range(EVENTS):
                writer.write(_TOKEN)
                await writer.drain()
                await asyncio.sleep(tick_s)
            writer.write(_END)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve(port: int, tick_s: float) -> None:
    await asyncio.start_server(lambda reader, writer: _stream(reader, writer, tick_s), "127.0.0.1", port)
    await asyncio.Event().wait()


async def consume(port: int, streams: int) -> int:
    """Read that many whole streams at once; the number of events that arrived. RuntimeError when one is cut."""
    return sum(await asyncio.gather(*(_consume_one(port) for _ in range(streams))))


async def _consume_one(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(_REQUEST_BODY) + _REQUEST_BODY)
    events, tail, first = 0, b"", b""
    while piece := await reader.read(65_536):
        first = first or piece
        piece = tail + piece
        events += piece.count(b"\n\n")
        tail = piece[-1:] if piece.endswith(b"\n") and not piece.endswith(b"\n\n") else b""
    writer.close()
    if not first.startswith(b"HTTP/1.1 200") or events < EVENTS:
        raise RuntimeError(f"a stream ended after {events} events: {first[:200]!r}")
    return events


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2])))
