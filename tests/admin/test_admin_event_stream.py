"""Readers that do not read, sources that break, and what is left behind: nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from sbproxy.admin.error_boundary import error_boundary
from sbproxy.admin.event_stream import EventStreams, Item, StreamEvent, StreamGap

BIG = b"x" * 65536


class Source:
    """Counts what was taken from it, and notices when it is closed."""

    def __init__(self, *, breaks_after: int | None = None) -> None:
        self.taken = 0
        self.closed = asyncio.Event()
        self._breaks_after = breaks_after

    async def items(self) -> AsyncIterator[Item]:
        try:
            while self.taken != self._breaks_after:
                self.taken += 1
                yield StreamEvent(self.taken, BIG)
            raise RuntimeError("the source broke")
        finally:
            self.closed.set()


async def server(streams: EventStreams, source: Source) -> TestServer:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await streams.serve(request, "admin", source.items())

    app = web.Application(middlewares=[error_boundary])
    app.add_routes([web.get("/", handle)])
    app.on_shutdown.append(streams.close)
    served = TestServer(app)
    await served.start_server()
    return served


async def test_a_reader_that_takes_nothing_is_cut_off_and_costs_little() -> None:
    streams, source = EventStreams(4, 4, 15.0, write_timeout_s=0.2), Source()
    served = await server(streams, source)
    reader, writer = await asyncio.open_connection(served.host, served.port, limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.wait_for(source.closed.wait(), 5)
    # What fits into the socket buffers of both sides, and not one event more than that.
    assert source.taken * len(BIG) < 32 << 20
    await asyncio.sleep(0)
    assert streams.open == 0
    writer.close()
    await served.close()
    assert reader is not None


async def test_a_source_that_breaks_cuts_the_stream_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    streams, source = EventStreams(4, 4, 15.0), Source(breaks_after=2)
    served = await server(streams, source)
    async with ClientSession() as client, client.get(served.make_url("/")) as answer:
        assert answer.status == 200
        with pytest.raises(Exception, match=r"(?i)payload|disconnect|reset"):
            await answer.read()
    assert streams.open == 0
    assert "event stream ended by an error" in caplog.text
    await served.close()


def test_the_wire_form() -> None:
    assert StreamEvent(7, b"{}").encode() == b"id: 7\ndata: {}\n\n"
    assert StreamEvent(None, b"{}").encode() == b"data: {}\n\n"
    assert StreamGap(3, 9).encode() == b'event: gap\nid: 9\ndata: {"from":3,"to":9,"missed":7}\n\n'
