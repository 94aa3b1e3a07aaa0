"""Keep-alive, pipelining, Expect, limits, time-outs, answers and their framing, drain."""

# ruff: noqa: ASYNC110 - waiting for conditions of the code under test, which sets no event
from __future__ import annotations

import asyncio
import logging

import orjson
import pytest

JSON = ((b"content-type", b"application/json"),)


def _post(body: bytes, *fields: bytes, path: bytes = b"/v1/x", version: bytes = b"HTTP/1.1") -> bytes:
    lines = (
        b"POST %b %b" % (path, version),
        b"Host: A.Example:8080",
        *fields,
        b"Content-Length: %d" % len(body),
        b"",
        b"",
    )
    return b"\r\n".join(lines) + body


def _get(path: bytes = b"/", *fields: bytes, version: bytes = b"HTTP/1.1", method: bytes = b"GET") -> bytes:
    return b"\r\n".join((b"%b %b %b" % (method, path, version), b"Host: a", *fields, b"", b""))


async def test_the_handler_gets_the_request_as_it_was_sent(wire) -> None:
    got = []

    async def handler(exchange) -> None:
        got.append(exchange.request)
        exchange.respond(200, JSON, b"{}")

    client = await wire.client(await wire.serve(handler))
    client.send(_post(b"abc", b"X-One: 1", b"x-two:\t2 \t", path=b"/v1/models/a%2Fb#c:d?x=1?y"))
    await client.answer()
    request = got[0]
    assert (request.method, request.path, request.query) == ("POST", "/v1/models/a%2Fb#c:d", "x=1?y")
    assert (request.host, request.body, request.client_ip) == ("a.example", b"abc", "127.0.0.1")
    assert request.header(b"x-one") == b"1"
    assert request.header(b"x-two") == b"2"
    assert request.header(b"x-three") is None
    assert b"abc" not in repr(request).encode()


@pytest.mark.parametrize(
    ("field", "host"),
    [(b"Host: Example.COM", "example.com"), (b"Host: [::1]:80", "[::1]"), (b"Host:", ""), (b"host: a:", "a")],
)
async def test_hosts_lose_their_port_and_case(wire, field: bytes, host: str) -> None:
    hosts = []

    async def handler(exchange) -> None:
        hosts.append(exchange.request.host)
        exchange.respond(200, (), b"")

    client = await wire.client(await wire.serve(handler))
    client.send(b"GET / HTTP/1.1\r\n" + field + b"\r\n\r\n")
    assert (await client.answer())[0] == 200
    assert hosts == [host]


async def test_keep_alive_serves_many_requests_on_one_connection(wire) -> None:
    client = await wire.client(await wire.serve())
    for at in range(5):
        client.send(_post(b"%d" % at))
        status, fields, body = await client.answer()
        assert (status, body) == (200, b"%d" % at)
        assert b"connection" not in fields
        assert fields[b"date"].endswith(b"GMT")


@pytest.mark.parametrize(
    ("request_", "closes", "said"),
    [
        (_get(b"/", b"Connection: close"), True, b"close"),
        (_get(b"/", b"Connection: foo, Close"), True, b"close"),
        (_get(b"/", b"Connection: keep-alive", b"Connection: close"), True, b"close"),
        (_get(version=b"HTTP/1.0"), True, b"close"),
        (_get(b"/", b"Connection: Keep-Alive", version=b"HTTP/1.0"), False, b"keep-alive"),
        (b"GET / HTTP/1.0\r\n\r\n", True, b"close"),
        (_get(b"/", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA"), False, None),
    ],
)
async def test_who_closes_the_connection(wire, request_: bytes, closes: bool, said: bytes | None) -> None:
    client = await wire.client(await wire.serve())
    client.send(request_)
    status, fields, _ = await client.answer()
    assert status == 200
    assert fields.get(b"connection") == said
    if closes:
        assert await client.closed()
    else:
        client.send(_get())
        assert (await client.answer())[0] == 200


async def test_a_post_that_offers_an_upgrade_keeps_its_body(wire) -> None:
    client = await wire.client(await wire.serve())
    client.send(_post(b"abc", b"Connection: Upgrade", b"Upgrade: h2c") + _post(b"next"))
    assert (await client.answer())[2] == b"abc"
    assert (await client.answer())[2] == b"next"


async def test_pipelined_requests_are_answered_in_order_one_at_a_time(wire) -> None:
    running = peak = 0

    async def handler(exchange) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.02 if exchange.request.body == b"0" else 0)
        exchange.respond(200, JSON, exchange.request.body)
        running -= 1

    client = await wire.client(await wire.serve(handler))
    chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\n3\r\n0\r\nT: v\r\n\r\n"
    client.send(b"".join(_post(b"%d" % at) for at in range(3)) + chunked + _post(b"4") + b"\r\n" + _post(b"5"))
    assert [(await client.answer())[2] for _ in range(6)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert peak == 1


async def test_deep_pipelining_pauses_reading_and_still_answers_everything(wire) -> None:
    released = asyncio.Event()

    async def handler(exchange) -> None:
        await released.wait()
        exchange.respond(200, JSON, exchange.request.body[:1])

    server = await wire.serve(handler, read_ahead_bytes=10_000)
    client = await wire.client(server)
    count = 400
    client.send(_post(b"x" * 10_000) * count)
    await asyncio.sleep(0.1)
    (connection,) = server.connections
    assert connection.read_paused
    released.set()
    for _ in range(count):
        assert (await client.answer())[2] == b"x"
    assert not connection.read_paused


async def test_a_client_that_pipelines_but_never_reads_is_given_no_more_work(wire) -> None:
    calls = 0

    async def handler(exchange) -> None:
        nonlocal calls
        calls += 1
        exchange.respond(200, (), b"z" * 300_000)

    server = await wire.serve(handler)
    client = await wire.client(server)
    client.reader._transport.pause_reading()
    client.send(_get() * 100)
    await asyncio.sleep(0.2)
    assert calls < 60
    client.reader._transport.resume_reading()
    for _ in range(100):
        assert len((await client.answer())[2]) == 300_000


async def test_head_has_the_length_but_no_body(wire) -> None:
    async def handler(exchange) -> None:
        exchange.respond(200, JSON, b"12345")

    client = await wire.client(await wire.serve(handler))
    client.send(_get(method=b"HEAD") + _get(b"/", b"Connection: close", method=b"HEAD"))
    text = await client.rest()
    assert text.count(b"Content-Length: 5\r\n") == 2
    assert b"12345" not in text


@pytest.mark.parametrize(("status", "has_length"), [(204, False), (304, True)])
async def test_statuses_without_a_body(wire, status: int, has_length: bool) -> None:
    async def handler(exchange) -> None:
        exchange.respond(status, (), b"" if status == 204 else b"abc")

    client = await wire.client(await wire.serve(handler))
    client.send(_get(b"/", b"Connection: close"))
    text = await client.rest()
    assert text.endswith(b"\r\n\r\n")
    assert (b"content-length" in text.lower()) is has_length


async def test_expect_is_answered_once_before_the_body(wire) -> None:
    client = await wire.client(await wire.serve())
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 4\r\n\r\n")
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"ab")
    await asyncio.sleep(0.01)
    client.send(b"cd")
    assert (await client.answer())[2] == b"abcd"


async def test_expect_works_for_chunked_bodies(wire) -> None:
    client = await wire.client(await wire.serve())
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"2\r\nab\r\n0\r\n\r\n")
    assert (await client.answer())[2] == b"ab"


async def test_no_interim_answer_when_the_body_is_here_or_none_is_announced(wire) -> None:
    client = await wire.client(await wire.serve())
    client.send(_post(b"ab", b"Expect: 100-continue") + _post(b"", b"Expect: 100-continue"))
    client.send(_post(b"x", b"Expect: 100-continue", version=b"HTTP/1.0"))
    assert [(await client.answer())[0] for _ in range(3)] == [200, 200, 200]


async def test_an_expected_body_over_the_limit_is_refused_unread(wire) -> None:
    server = await wire.serve(body_bytes=10, linger_timeout_s=0.1)
    client = await wire.client(server)
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n")
    status, _, body = await client.answer()
    assert status == 413
    assert orjson.loads(body)["error"]["code"] == "body_too_large"


async def test_a_refused_upload_still_gets_its_answer(wire) -> None:
    server = await wire.serve(body_bytes=1000)
    client = await wire.client(server)
    client.send(_post(b"x" * 3_000_000))
    assert (await client.answer())[0] == 413


async def test_chunked_bodies_stop_at_the_limit(wire) -> None:
    server = await wire.serve(body_bytes=10, linger_timeout_s=0.1)
    client = await wire.client(server)
    client.send(
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n6\r\nabcdef\r\n0\r\n\r\n"
    )
    assert (await client.answer())[0] == 413
    assert wire.seen == []


async def test_an_idle_connection_is_closed_without_a_word(wire) -> None:
    server = await wire.serve(idle_timeout_s=0.1)
    client = await wire.client(server)
    client.send(_get())
    await client.answer()
    async with asyncio.timeout(1):
        assert await client.closed()


async def test_a_silent_newcomer_is_closed(wire) -> None:
    client = await wire.client(await wire.serve(head_timeout_s=0.1))
    async with asyncio.timeout(1):
        assert await client.closed()


async def test_a_head_that_trickles_is_ended(wire) -> None:
    server = await wire.serve(head_timeout_s=0.15, linger_timeout_s=0.1)
    client = await wire.client(server)
    answered = asyncio.ensure_future(client.answer())
    async with asyncio.timeout(1):
        for byte in _get(b"/", b"X: " + b"y" * 100):
            if answered.done():
                break
            client.send(bytes([byte]))
            await asyncio.sleep(0.01)
        assert (await answered)[0] == 408
    assert wire.seen == []


async def test_a_body_that_trickles_is_ended_and_a_slow_one_is_not(wire) -> None:
    server = await wire.serve(body_timeout_s=0.15, body_bytes_per_s=1000.0, linger_timeout_s=0.1)
    slow, trickle = await wire.client(server), await wire.client(server)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n"
    slow.send(head)
    trickle.send(head)
    answered = asyncio.ensure_future(trickle.answer())
    async with asyncio.timeout(3):
        for _ in range(10):
            slow.send(b"x" * 50)
            if not answered.done():
                trickle.send(b"x")
            await asyncio.sleep(0.04)
        assert (await slow.answer())[0] == 200
        assert (await answered)[0] == 408


async def test_too_many_connections_are_told_so(wire) -> None:
    server = await wire.serve(connections=2, linger_timeout_s=0.1)
    first, second, third = [await wire.client(server) for _ in range(3)]
    status, fields, body = await third.answer()
    assert (status, fields[b"connection"], orjson.loads(body)["error"]["code"]) == (503, b"close", "overloaded")
    await first.leave()
    second.send(_get())
    assert (await second.answer())[0] == 200


async def test_streams_are_chunked(wire) -> None:
    async def handler(exchange) -> None:
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        exchange.write(b"data: 1\n\n")
        exchange.write(b"")
        await asyncio.sleep(0)
        exchange.write(b"data: 2\n\n")
        exchange.finish()
        assert exchange.bytes_out > 100

    client = await wire.client(await wire.serve(handler))
    client.send(_get() + _get())
    for _ in range(2):
        status, fields, body = await client.answer()
        assert (status, fields[b"transfer-encoding"], body) == (200, b"chunked", b"data: 1\n\ndata: 2\n\n")
        assert b"content-length" not in fields


async def test_a_stream_to_http_1_0_ends_with_the_connection(wire) -> None:
    async def handler(exchange) -> None:
        exchange.start(200, ())
        exchange.write(b"abc")
        exchange.finish()

    client = await wire.client(await wire.serve(handler))
    client.send(_get(b"/", b"Connection: keep-alive", version=b"HTTP/1.0"))
    text = await client.rest()
    assert text.endswith(b"\r\n\r\nabc")
    assert b"Connection: close" in text
    assert b"chunked" not in text


async def test_an_aborted_stream_has_no_last_chunk(wire) -> None:
    async def handler(exchange) -> None:
        exchange.start(200, ())
        exchange.write(b"abc")
        exchange.abort()

    client = await wire.client(await wire.serve(handler))
    client.send(_get())
    text = await client.rest()
    assert text.endswith(b"3\r\nabc\r\n")


async def test_an_aborted_stream_to_http_1_0_is_reset(wire) -> None:
    async def handler(exchange) -> None:
        exchange.start(200, ())
        exchange.write(b"abc")
        await asyncio.sleep(0.02)
        exchange.abort()

    client = await wire.client(await wire.serve(handler))
    client.send(_get(version=b"HTTP/1.0"))
    with pytest.raises(ConnectionResetError):
        await client.rest()


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_failing_handler_is_answered_or_cut_and_logged_without_content(wire, caplog, streaming: bool) -> None:
    async def handler(exchange) -> None:
        if streaming:
            exchange.start(200, ())
            exchange.write(b"abc")
        raise ValueError(f"cannot read {exchange.request.body!r}")

    server = await wire.serve(handler)
    client = await wire.client(server)
    with caplog.at_level(logging.ERROR):
        client.send(_post(b"secret-text"))
        if streaming:
            assert (await client.rest()).endswith(b"3\r\nabc\r\n")
        else:
            status, fields, body = await client.answer()
            assert (status, fields[b"connection"]) == (500, b"close")
            assert orjson.loads(body)["error"]["code"] == "internal_error"
            assert await client.closed()
    assert "ValueError" in caplog.text
    assert "test_gateway_http_server.py" in caplog.text
    assert "secret-text" not in caplog.text


async def test_a_handler_that_forgets_to_answer_is_a_server_error(wire, caplog) -> None:
    async def handler(exchange) -> None:
        return None

    client = await wire.client(await wire.serve(handler))
    client.send(_get())
    assert (await client.answer())[0] == 500
    assert "without an answer" in caplog.text


@pytest.mark.parametrize(
    "headers",
    [
        ((b"x", b"a\r\nEvil: 1"),),
        ((b"x", b"a\nb"),),
        ((b"x", b"a\rb"),),
        ((b"x", b"a\0b"),),
        ((b"x: y\r\nz", b"a"),),
        ((b"", b"a"),),
        ((b"a b", b"a"),),
        ((b"content-length", b"7"),),
        ((b"transfer-encoding", b"chunked"),),
        ((b"connection", b"close"),),
    ],
)
async def test_headers_cannot_break_out_of_their_line(wire, headers) -> None:
    raised = []

    async def handler(exchange) -> None:
        for answer in (exchange.start, lambda status, pairs: exchange.respond(status, pairs, b"")):
            try:
                answer(200, headers)
            except ValueError as error:
                raised.append(error)
        exchange.respond(200, (), b"fine")

    client = await wire.client(await wire.serve(handler))
    client.send(_get())
    assert (await client.answer())[2] == b"fine"
    assert len(raised) == 2


async def test_misuse_of_an_exchange_is_told(wire) -> None:
    failures = []

    async def handler(exchange) -> None:
        for misuse in (lambda: exchange.write(b"x"), exchange.finish, lambda: exchange.respond(100, (), b"")):
            with pytest.raises((RuntimeError, ValueError)) as caught:
                misuse()
            failures.append(caught.type)
        exchange.respond(299, (), b"fine")
        with pytest.raises(RuntimeError):
            exchange.respond(200, (), b"again")
        with pytest.raises(RuntimeError):
            exchange.start(200, ())

    client = await wire.client(await wire.serve(handler))
    client.send(_get())
    assert (await client.answer())[0] == 299
    assert failures == [RuntimeError, RuntimeError, ValueError]


async def test_drain_closes_idle_connections_and_lets_running_requests_finish(wire) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def handler(exchange) -> None:
        if exchange.request.path == "/slow":
            entered.set()
            await release.wait()
        exchange.respond(200, JSON, b"done")

    server = await wire.serve(handler)
    idle, busy = await wire.client(server), await wire.client(server)
    idle.send(_get())
    await idle.answer()
    busy.send(_get(b"/slow"))
    await entered.wait()
    port = server.port
    draining = asyncio.ensure_future(server.drain(5))
    async with asyncio.timeout(1):
        assert await idle.closed()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert not draining.done()
    release.set()
    status, fields, body = await busy.answer()
    assert (status, fields[b"connection"], body) == (200, b"close", b"done")
    assert await draining == 0


async def test_drain_cuts_what_is_not_done_in_time(wire) -> None:
    cancelled = asyncio.Event()
    entered = asyncio.Event()

    async def handler(exchange) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = await wire.serve(handler)
    client = await wire.client(server)
    client.send(_get())
    await entered.wait()
    assert await server.drain(0.05) == 1
    assert cancelled.is_set()
    assert await client.closed()


async def test_a_request_that_is_arriving_when_the_drain_begins_is_served(wire) -> None:
    server = await wire.serve()
    client = await wire.client(server)
    client.send(_post(b"abcd")[:-2])
    while not any(connection._stage for connection in server.connections):
        await asyncio.sleep(0.001)
    draining = asyncio.ensure_future(server.drain(5))
    await asyncio.sleep(0.01)
    client.send(b"cd")
    status, fields, body = await client.answer()
    assert (status, fields[b"connection"], body) == (200, b"close", b"abcd")
    assert await draining == 0
