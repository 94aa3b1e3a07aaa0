"""The upstream pool against scripted upstreams: reuse, the one retry, cancellation, strictness, limits, time-outs."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import pytest

from sbproxy.errors.gateway import UpstreamBroken, UpstreamTimeout, UpstreamTooLarge, UpstreamUnreachable
from sbproxy.gateway.exchange import Upstream
from sbproxy.gateway.http import UpstreamPool
from support.gateway_wire import pieces_of

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def answering(*answers: bytes, then_close: bool = False):
    """A script that gives the answers in turn, the last one for ever."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for at in range(1000):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answers[min(at, len(answers) - 1)])
            await writer.drain()
            if then_close:
                return

    return script


async def _get(
    pool, upstream, *, timeout_s: float | None = 5, method: str = "GET", body: bytes = b""
) -> tuple[int, bytes]:
    reply = await pool.send(upstream, method, "/x", (), body, timeout_s=timeout_s)
    return reply.status, await reply.read(1_000_000)


async def test_the_request_is_written_as_given(wire) -> None:
    async def script(reader, writer) -> None:
        for _ in range(3):
            await scripted.request(reader)
            writer.write(OK)

    upstream, scripted = await wire.upstream(script)
    pool = wire.pool()
    for method, body in (("POST", b"{}"), ("GET", b""), ("POST", b"")):
        reply = await pool.send(upstream, method, "/v1/a?b=c", ((b"x-one", b"1"),), body, timeout_s=5)
        assert await reply.read(10) == b"ok"
    host = f"Host: 127.0.0.1:{upstream.port}\r\n".encode()
    assert scripted.requests == [
        b"POST /v1/a?b=c HTTP/1.1\r\n" + host + b"x-one: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /v1/a?b=c HTTP/1.1\r\n" + host + b"x-one: 1\r\n\r\n",
        b"POST /v1/a?b=c HTTP/1.1\r\n" + host + b"x-one: 1\r\nContent-Length: 0\r\n\r\n",
    ]
    assert scripted.accepted == 1


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/a b", ()),
        ("GET", "/a\r\nX: y", ()),
        ("GET", "a", ()),
        ("get", "/", ()),
        ("GET", "/\u00e9", ()),
        ("GET", "/", ((b"host", b"other"),)),
        ("GET", "/", ((b"x", b"a\r\nb: c"),)),
    ],
)
async def test_a_request_that_would_break_its_head_is_never_sent(wire, method, path, headers) -> None:
    upstream, scripted = await wire.upstream(answering(OK))
    with pytest.raises(ValueError):
        await wire.pool().send(upstream, method, path, headers, b"", timeout_s=5)
    assert scripted.accepted == 0


async def test_connections_are_reused_and_counted(wire) -> None:
    upstream, scripted = await wire.upstream(answering(OK))
    pool = wire.pool()
    for _ in range(5):
        assert await _get(pool, upstream) == (200, b"ok")
        assert (pool.in_use, pool.idle) == (0, 1)
    assert scripted.accepted == 1
    await asyncio.gather(*(_get(pool, upstream) for _ in range(4)))
    assert scripted.accepted == pool.idle == 4


async def test_no_more_idle_connections_than_asked_for(wire) -> None:
    upstream, scripted = await wire.upstream(answering(OK))
    pool = wire.pool(max_idle_per_upstream=2)
    await asyncio.gather(*(_get(pool, upstream) for _ in range(5)))
    assert pool.idle == 2
    await scripted.until(lambda: scripted.open == 2)


async def test_idle_connections_close_in_time(wire) -> None:
    upstream, scripted = await wire.upstream(answering(OK))
    pool = wire.pool(idle_timeout_s=0.1)
    await _get(pool, upstream)
    await scripted.until(lambda: scripted.open == 0)
    assert pool.idle == 0


async def test_a_connection_that_the_upstream_closes_while_idle_is_dropped(wire) -> None:
    upstream, scripted = await wire.upstream(answering(OK, then_close=True))
    pool = wire.pool()
    await _get(pool, upstream)
    await scripted.until(lambda: pool.idle == 0)
    assert await _get(pool, upstream) == (200, b"ok")
    assert scripted.accepted == 2


async def test_a_stale_connection_is_retried_once_on_a_fresh_one(wire) -> None:
    async def script(reader, writer) -> None:
        fresh = scripted.accepted > 1
        await scripted.request(reader)
        writer.write(OK)
        await scripted.request(reader)  # and closes without a byte of an answer
        if fresh:
            writer.write(OK)

    upstream, scripted = await wire.upstream(script)
    pool = wire.pool()
    await _get(pool, upstream)
    assert await _get(pool, upstream, method="POST", body=b"again") == (200, b"ok")
    assert scripted.accepted == 2
    assert [request[-5:] for request in scripted.requests[1:]] == [b"again", b"again"]


async def test_a_fresh_connection_is_not_retried(wire) -> None:
    async def script(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")

    upstream, scripted = await wire.upstream(script)
    with pytest.raises(UpstreamBroken):
        await _get(wire.pool(), upstream)
    assert scripted.accepted == 1


@pytest.mark.parametrize("first", [b"H", b"HTTP/1.1 200 OK\r\nConte", b"HTTP/1.1 100 Continue\r\n\r\n", b"nonsense"])
async def test_no_retry_after_the_first_byte(wire, first: bytes) -> None:
    async def script(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(first)

    upstream, scripted = await wire.upstream(script)
    pool = wire.pool()
    await _get(pool, upstream)
    with pytest.raises(UpstreamBroken):
        await _get(pool, upstream)
    assert scripted.accepted == 1


async def test_a_time_out_on_a_reused_connection_is_not_retried(wire) -> None:
    async def script(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.read()

    upstream, scripted = await wire.upstream(script)
    pool = wire.pool()
    await _get(pool, upstream)
    with pytest.raises(UpstreamTimeout) as caught:
        await _get(pool, upstream, timeout_s=0.1)
    assert caught.value.timeout_s == 0.1
    assert scripted.accepted == 1
    await scripted.until(lambda: scripted.open == 0)


async def test_nobody_listens(wire) -> None:
    upstream, scripted = await wire.upstream(answering(OK))
    await scripted.stop()
    with pytest.raises(UpstreamUnreachable) as caught:
        await _get(wire.pool(), upstream)
    assert caught.value.upstream == upstream.authority
    assert "refused" in caught.value.reason.lower()


@pytest.fixture
def deaf() -> Iterator[Upstream]:
    """An address that answers no connection: its queue is full."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    filler = socket.create_connection(listener.getsockname())
    yield Upstream(*listener.getsockname())
    filler.close()
    listener.close()


async def test_a_connection_that_is_not_accepted_times_out(deaf, wire) -> None:
    with pytest.raises(UpstreamUnreachable, match="no connection within"):
        await _get(wire.pool(connect_timeout_s=0.05), deaf)
    with pytest.raises(UpstreamTimeout):
        await _get(wire.pool(), deaf, timeout_s=0.05)


async def test_a_body_that_stops_coming_times_out(wire) -> None:
    async def script(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        for _ in range(4):
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.1)
        await reader.read()

    upstream, _ = await wire.upstream(script)
    reply = await wire.pool().send(upstream, "GET", "/", (), b"", timeout_s=0.25)
    got = b""
    with pytest.raises(UpstreamTimeout):
        async for piece in pieces_of(reply):
            got += piece
    assert got == b"xxxx"  # each piece came in time, though all together took longer


@pytest.mark.parametrize("extended", [False, True])
async def test_an_answer_must_be_whole_by_its_time_though_every_piece_comes_soon(wire, extended: bool) -> None:
    async def script(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        for _ in range(8):
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.05)
        writer.write(b"0\r\n\r\n")

    upstream, _ = await wire.upstream(script)
    pool = wire.pool()
    reply = await pool.send(upstream, "GET", "/", (), b"", timeout_s=5, until=perf_counter() + 0.15)
    if extended:
        reply.extend(5)
        assert await reply.read(100) == b"x" * 8
        reply.extend(-10)  # the answer is over: nothing that the connection does next is hurried
        assert pool.idle == 1
        return
    with pytest.raises(UpstreamTimeout):
        await reply.read(100)
    assert (pool.in_use, pool.idle) == (0, 0)


async def test_the_time_of_an_answer_runs_while_its_taker_is_slow(wire) -> None:
    async def script(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"f4240\r\n" + b"x" * 1_000_000)
        await reader.read()

    upstream, scripted = await wire.upstream(script)
    pool = wire.pool()
    reply = await pool.send(upstream, "GET", "/", (), b"", timeout_s=0.1, until=perf_counter() + 0.4)
    await asyncio.sleep(0.3)
    assert pool.in_use == 1
    await scripted.until(lambda: scripted.open == 0)
    with pytest.raises(UpstreamTimeout):
        await reply.read(2_000_000)


BROKEN = {
    "no head": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "short body": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
    "short chunk": CHUNKED + b"5\r\nabc",
    "no last chunk": CHUNKED + b"3\r\nabc\r\n",
    "no final line": CHUNKED + b"3\r\nabc\r\n0\r\n",
    "bad chunk size": CHUNKED + b"x\r\nabc\r\n0\r\n\r\n",
    "huge chunk size": CHUNKED + b"fffffffffffffffff\r\nabc",
    "bare LF in chunks": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "length and chunked": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
    "list of lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
    "signed length": b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
    "gzip coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "unknown coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: x\r\n\r\nok",
    "two codings": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "folded field": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
    "bare LF": b"HTTP/1.1 200 OK\r\nX: a\nContent-Length: 2\r\n\r\nok",
    "only LF": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    "NUL in a value": b"HTTP/1.1 200 OK\r\nX: a\0\r\nContent-Length: 2\r\n\r\nok",
    "space before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
    "HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/0.9": b"hello",
    "status 99": b"HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nok",
    "status 600": b"HTTP/1.1 600 OK\r\nContent-Length: 2\r\n\r\nok",
    "four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok",
    "other protocol": b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nok",
    "endless interim": b"HTTP/1.1 102 Processing\r\n\r\n" * 100,
    "huge head": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\nContent-Length: 2\r\n\r\nok",
    "many fields": b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 300 + b"Content-Length: 2\r\n\r\nok",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x0a",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_an_answer_that_is_broken_or_contradicts_itself_is_not_used(wire, name: str) -> None:
    upstream, scripted = await wire.upstream(answering(BROKEN[name], then_close=True))
    pool = wire.pool()
    with pytest.raises(UpstreamBroken) as caught:
        await _get(pool, upstream)
    assert caught.value.upstream == upstream.authority
    assert caught.value.reason
    assert (pool.in_use, pool.idle) == (0, 0)
    await scripted.until(lambda: scripted.open == 0)


async def test_an_endless_head_is_given_up(wire) -> None:
    async def script(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            writer.write(b"a" * 1000)
            await writer.drain()

    upstream, _ = await wire.upstream(script)
    with pytest.raises(UpstreamBroken, match="too large"):
        await _get(wire.pool(), upstream)


@pytest.mark.parametrize(
    ("answer", "status", "body", "reused"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK, 200, b"ok", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", True),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
        (CHUNKED + b"1;x=y\r\no\r\n1\r\nk\r\n0\r\nTrailer: v\r\n\r\n", 200, b"ok", True),
        (OK + b"HTTP/1.1 200 OK\r\n", 200, b"ok", False),
        (OK + b"x", 200, b"ok", False),
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\nHTTP", 200, b"ok", False),
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\n\0", 200, b"ok", False),
    ],
)
async def test_odd_but_valid_answers(wire, answer: bytes, status: int, body: bytes, reused: bool) -> None:
    upstream, _ = await wire.upstream(answering(answer))
    pool = wire.pool()
    assert await _get(pool, upstream) == (status, body)
    assert pool.idle == int(reused)


async def test_a_body_without_length_ends_with_the_connection(wire) -> None:
    upstream, _ = await wire.upstream(answering(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nabc", then_close=True))
    pool = wire.pool()
    reply = await pool.send(upstream, "GET", "/", (), b"", timeout_s=5)
    assert reply.header(b"x") == b"y"
    assert [piece async for piece in pieces_of(reply)] == [b"abc"]
    assert pool.idle == 0


async def test_a_body_without_length_that_is_reset_is_broken(wire) -> None:
    async def script(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nabc")
        await writer.drain()
        await asyncio.sleep(0.05)
        sock = writer.transport.get_extra_info("socket")
        sock.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER: closing resets
        writer.transport.abort()

    upstream, _ = await wire.upstream(script)
    with pytest.raises(UpstreamBroken):
        await _get(wire.pool(), upstream)


async def test_head_requests_have_no_body_whatever_the_length_says(wire) -> None:
    upstream, scripted = await wire.upstream(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"))
    pool = wire.pool()
    for _ in range(2):
        assert await _get(pool, upstream, method="HEAD") == (200, b"")
    assert scripted.accepted == 1


async def test_unasked_bytes_on_an_idle_connection_close_it(wire) -> None:
    async def script(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await asyncio.sleep(0.05)
        writer.write(OK)
        await reader.read()

    upstream, scripted = await wire.upstream(script)
    pool = wire.pool()
    await _get(pool, upstream)
    await scripted.until(lambda: pool.idle == 0 and scripted.open == 0)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_unary_answers_above_the_limit_are_refused(wire, framing: str) -> None:
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000
    chunked = CHUNKED + b"%x\r\n" % 200_000 + b"x" * 200_000 + b"\r\n0\r\n\r\n"
    upstream, _ = await wire.upstream(answering(plain if framing == "length" else chunked))
    pool = wire.pool()
    reply = await pool.send(upstream, "GET", "/", (), b"", timeout_s=5)
    with pytest.raises(UpstreamTooLarge) as caught:
        await reply.read(100_000)
    assert caught.value.limit_bytes == 100_000
    assert pool.in_use == 0
    reply = await pool.send(upstream, "GET", "/", (), b"", timeout_s=5)
    assert len(await reply.read(200_000)) == 200_000


@pytest.mark.parametrize("phase", ["connect", "head", "read", "chunks", "given up"])
async def test_cancelling_closes_the_connection_at_once(deaf, wire, phase: str) -> None:
    async def script(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if phase != "head":
            writer.write(CHUNKED + b"1\r\nx\r\n")
        assert await reader.read() == b""

    upstream, scripted = await wire.upstream(script)
    if phase == "connect":
        upstream = deaf
    pool = wire.pool()

    async def work() -> None:
        reply = await pool.send(upstream, "GET", "/", (), b"", timeout_s=30)
        if phase == "given up":
            reply.close()
            reply.close()
            return
        if phase == "read":
            await reply.read(100)
        async for _ in pieces_of(reply):
            pass

    task = asyncio.ensure_future(work())
    if phase != "connect":
        await scripted.until(lambda: scripted.accepted == 1)
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    await scripted.until(lambda: scripted.open == 0)
    assert (pool.in_use, pool.idle) == (0, 0)


async def test_closing_a_whole_answer_keeps_its_connection(wire) -> None:
    upstream, _ = await wire.upstream(answering(OK))
    pool = wire.pool()
    reply = await pool.send(upstream, "GET", "/", (), b"", timeout_s=5)
    reply.close()
    assert pool.idle == 1
    assert await reply.read(10) == b"ok"


async def test_an_early_answer_arrives_while_the_request_is_still_being_written(wire) -> None:
    async def script(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        await asyncio.sleep(5)

    upstream, _ = await wire.upstream(script)
    pool = wire.pool()
    assert await _get(pool, upstream, method="POST", body=b"x" * 30_000_000) == (413, b"big")
    assert pool.idle == 0


async def test_a_slow_consumer_pauses_the_upstream(wire) -> None:
    sent = 0

    async def script(reader, writer) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        for _ in range(4000):
            writer.write(b"%x\r\n" % 10_000 + b"x" * 10_000 + b"\r\n")
            await writer.drain()
            sent += 10_000
        writer.write(b"0\r\n\r\n")

    upstream, _ = await wire.upstream(script)
    pool = wire.pool()
    reply = await pool.send(upstream, "GET", "/", (), b"", timeout_s=0.3)
    await asyncio.sleep(0.5)  # longer than the time-out, which does not run while it is us who do not read
    assert sent < 20_000_000
    total, largest = 0, 0
    async for piece in pieces_of(reply):
        total += len(piece)
        largest = max(largest, len(piece))
    assert total == 40_000_000
    assert largest < 600_000
    assert pool.idle == 1


async def test_pieces_that_came_before_a_cut_are_delivered_first(wire) -> None:
    upstream, _ = await wire.upstream(answering(CHUNKED + b"3\r\nabc\r\n", then_close=True))
    reply = await wire.pool().send(upstream, "GET", "/", (), b"", timeout_s=5)
    await asyncio.sleep(0.05)
    got = []
    with pytest.raises(UpstreamBroken):
        async for piece in pieces_of(reply):
            got += [piece]
    assert got == [b"abc"]


async def test_forgetting_an_upstream_closes_its_connections(wire) -> None:
    release = asyncio.Event()

    async def script(reader, writer) -> None:
        while True:
            request = await scripted.request(reader)
            if request.startswith(b"POST"):
                await release.wait()
            writer.write(OK)

    upstream, scripted = await wire.upstream(script)
    pool = wire.pool()
    await asyncio.gather(_get(pool, upstream), _get(pool, upstream))
    busy = asyncio.ensure_future(_get(pool, upstream, method="POST"))
    await asyncio.sleep(0.02)
    pool.close_upstream(upstream)
    await scripted.until(lambda: scripted.open == 1)
    release.set()
    assert await busy == (200, b"ok")
    await scripted.until(lambda: scripted.open == 0)
    assert await _get(pool, upstream, method="POST") == (200, b"ok")


async def test_closing_the_pool_breaks_what_waits_and_refuses_more(wire) -> None:
    async def script(reader, writer) -> None:
        await reader.read()

    upstream, scripted = await wire.upstream(script)
    pool = wire.pool()
    waiting = asyncio.ensure_future(_get(pool, upstream))
    await scripted.until(lambda: scripted.open == 1)
    await asyncio.sleep(0.02)
    await pool.close()
    with pytest.raises(UpstreamBroken):
        await waiting
    with pytest.raises(UpstreamUnreachable, match="shutting down"):
        await _get(pool, upstream)


async def test_tls_upstreams_are_verified(wire, certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(answering(OK), "127.0.0.1", 0, ssl=context)
    upstream = Upstream("127.0.0.1", server.sockets[0].getsockname()[1], tls=True)
    pool = UpstreamPool(tls=ssl.create_default_context(cafile=str(certificate)))
    wire.pools.append(pool)
    for _ in range(2):
        assert await _get(pool, upstream) == (200, b"ok")
    assert pool.idle == 1
    with pytest.raises(UpstreamUnreachable, match="not trusted"):
        await _get(wire.pool(), upstream)
    await pool.close()
    server.close()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "0.0.0.0"])
async def test_a_name_that_leads_inside_is_not_connected_to(wire, name: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("it was connected to")

    upstream, _ = await wire.upstream(script)
    pool = wire.pool()
    with pytest.raises(UpstreamUnreachable, match="allow_private_base_url"):
        await pool.send(Upstream(name, upstream.port, public_only=True), "GET", "/", (), b"", timeout_s=5)
