"""A client that leaves ends its request's task within a second, wherever that waits; slow readers slow things down."""

# ruff: noqa: ASYNC110 - waiting for conditions of the code under test, which sets no event
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.gateway_wire import pieces_of

POST = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Phases:
    """A proxying handler that stands still in one phase and notes whether it was cancelled there."""

    def __init__(self, wire, phase: str) -> None:
        self.pool = wire.pool()
        self.phase = phase
        self.reached = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.upstream = None

    async def __call__(self, exchange) -> None:
        try:
            await self.run(exchange)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def run(self, exchange) -> None:
        if self.phase == "queued":
            self.reached.set()
            await asyncio.Event().wait()
        if self.phase in ("unary head", "stream head"):
            self.reached.set()
        reply = await self.pool.send(self.upstream, "POST", "/", (), exchange.request.body, timeout_s=30)
        if self.phase == "unary body":
            self.reached.set()
            await reply.read(1000)
        exchange.start(200, ())
        async for piece in pieces_of(reply):
            exchange.write(piece)
            self.reached.set()
            if exchange.paused:
                await exchange.drain()
        exchange.finish()


async def _script(phase: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
    await reader.readuntil(b"{}")
    if phase in ("unary body", "stream body"):
        writer.write(HEAD + b"3\r\nabc\r\n")
    assert await reader.read() == b""
    gone.set()


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("phase", ["queued", "unary head", "unary body", "stream head", "stream body"])
async def test_a_client_that_leaves_cancels_its_request_and_the_engine(wire, phase: str, how: str) -> None:
    gone = asyncio.Event()
    handler = Phases(wire, phase)
    handler.upstream, scripted = await wire.upstream(lambda reader, writer: _script(phase, reader, writer, gone))
    server = await wire.serve(handler)
    client = await wire.client(server)
    client.send(POST)
    await handler.reached.wait()
    if phase.endswith("head"):
        await scripted.until(lambda: scripted.open == 1)
    if how == "half-close":
        client.writer.write_eof()
    elif how == "reset":
        client.vanish()
    else:
        await client.leave()
    async with asyncio.timeout(1):
        await handler.cancelled.wait()
        if phase != "queued":
            await gone.wait()
    assert handler.pool.in_use == handler.pool.idle == 0
    assert server.active_requests == 0


async def test_a_client_that_leaves_with_its_request_never_starts_it(wire) -> None:
    started = asyncio.Event()

    async def handler(exchange) -> None:
        started.set()
        await asyncio.Event().wait()

    server = await wire.serve(handler)
    for _ in range(20):
        client = await wire.client(server)
        client.send(POST)
        client.writer.write_eof()
        async with asyncio.timeout(1):
            assert await client.rest() == b""
    await asyncio.sleep(0.01)
    assert server.active_requests == 0


async def test_a_client_that_leaves_is_noticed_while_its_pipelined_requests_wait(wire) -> None:
    cancelled = asyncio.Event()

    async def handler(exchange) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = await wire.serve(handler, read_ahead_bytes=100, linger_timeout_s=0.2)
    client = await wire.client(server)
    client.send(POST * 100)
    async with asyncio.timeout(1):
        while not any(connection.read_paused for connection in server.connections):
            await asyncio.sleep(0.005)
        await client.leave()
        await cancelled.wait()


async def test_only_the_leaving_client_is_cancelled(wire) -> None:
    release, running, cancelled = asyncio.Event(), [], []

    async def handler(exchange) -> None:
        running.append(exchange)
        try:
            await release.wait()
        except asyncio.CancelledError:
            cancelled.append(exchange)
            raise
        exchange.respond(200, (), b"fine")

    server = await wire.serve(handler)
    stays, leaves = await wire.client(server), await wire.client(server)
    stays.send(POST)
    leaves.send(POST)
    while len(running) < 2:
        await asyncio.sleep(0.001)
    await leaves.leave()
    while not cancelled:
        await asyncio.sleep(0.001)
    release.set()
    assert (await stays.answer())[2] == b"fine"
    assert len(cancelled) == 1


async def test_a_client_that_leaves_after_its_answer_cancels_nothing(wire) -> None:
    answered, finish, outcome = asyncio.Event(), asyncio.Event(), []

    async def handler(exchange) -> None:
        exchange.respond(200, (), b"fine")
        answered.set()
        await finish.wait()
        outcome.append("finished")

    client = await wire.client(await wire.serve(handler))
    client.send(POST)
    await client.answer()
    await client.leave()
    await asyncio.sleep(0.05)
    finish.set()
    await asyncio.sleep(0.01)
    assert outcome == ["finished"]


async def test_writes_after_the_client_left_do_nothing(wire, caplog) -> None:
    done = asyncio.Event()

    async def handler(exchange) -> None:
        exchange.start(200, ())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            for _ in range(10):
                exchange.write(b"x" * 1000)
            await exchange.drain()
            exchange.abort()
            done.set()
            raise

    client = await wire.client(await wire.serve(handler))
    client.send(POST)
    await client.reader.readuntil(b"\r\n\r\n")
    client.vanish()
    async with asyncio.timeout(1):
        await done.wait()
    assert caplog.text == ""


async def test_a_slow_client_pauses_the_upstream(wire) -> None:
    sent, size = 0, 200_000
    piece = b"%x\r\n%b\r\n" % (size, b"x" * size)

    async def script(reader, writer) -> None:
        nonlocal sent
        await reader.readuntil(b"{}")
        writer.write(HEAD)
        while sent < 100_000_000:
            writer.write(piece)
            await writer.drain()
            sent += size

    handler = Phases(wire, "stream body")
    handler.upstream, scripted = await wire.upstream(script)
    client = await wire.client(await wire.serve(handler))
    client.reader._transport.pause_reading()
    client.send(POST)
    await handler.reached.wait()
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.1)
    assert sent < 30_000_000  # what the kernel's buffers of two connections hold, and little of ours
    client.reader._transport.resume_reading()
    for _ in range(300):
        await client.reader.readexactly(100_000)
    await scripted.until(lambda: sent > before)


async def test_a_client_that_stops_reading_is_dropped_after_the_write_timeout(wire) -> None:
    cancelled = asyncio.Event()

    async def handler(exchange) -> None:
        exchange.start(200, ())
        try:
            while True:
                exchange.write(b"x" * 100_000)
                if exchange.paused:
                    await exchange.drain()
        finally:
            cancelled.set()

    server = await wire.serve(handler, write_timeout_s=0.2)
    client = await wire.client(server)
    client.reader._transport.pause_reading()
    client.send(POST)
    async with asyncio.timeout(3):
        await cancelled.wait()


async def test_a_slow_client_that_goes_on_reading_is_kept(wire) -> None:
    async def handler(exchange) -> None:
        exchange.respond(200, (), b"x" * 8_000_000)

    server = await wire.serve(handler, write_timeout_s=0.2, idle_timeout_s=0.2)
    client = await wire.client(server)
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    transport, total = client.reader._transport, 0
    async for size in _slowly(client.reader, transport):
        total += size
    assert total > 8_000_000


async def _slowly(reader: asyncio.StreamReader, transport: asyncio.Transport) -> AsyncIterator[int]:
    while piece := await reader.read(500_000):
        await asyncio.sleep(0.02)
        yield len(piece)
