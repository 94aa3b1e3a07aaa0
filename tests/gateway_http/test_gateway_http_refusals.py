"""The corpus of malformed requests, over real sockets."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from support.malformed_requests import ALL, Malformed

GOOD = b"POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
async def test_a_malformed_request_is_refused_and_its_connection_closed(wire, case: Malformed) -> None:
    server = await wire.serve(linger_timeout_s=0.5, head_timeout_s=5)
    client = await wire.client(server)
    client.send(case.raw)
    async with asyncio.timeout(2):
        status, fields, body = await client.answer()
        assert status == case.status, body
        assert fields[b"connection"] == b"close"
        assert fields[b"content-type"] == b"application/json"
        error = orjson.loads(body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
        assert case.word in error["message"]
        assert await client.closed()
    assert wire.seen == []
    fresh = await wire.client(server)
    fresh.send(GOOD)
    assert (await fresh.answer())[0] == 200
    assert wire.seen == [("POST", "/ok", "", b"ok")]


async def test_what_precedes_a_malformed_request_is_answered_first(wire) -> None:
    server = await wire.serve(linger_timeout_s=0.2)
    client = await wire.client(server)
    client.send(GOOD + b"GET / HTTP/1.1\r\nHost : a\r\n\r\n")
    assert (await client.answer())[2] == b"ok"
    assert (await client.answer())[0] == 400
    assert await client.closed()


async def test_every_malformed_request_fares_the_same_in_two_segments(wire) -> None:
    server = await wire.serve(linger_timeout_s=0.2)
    for case in ALL:
        client = await wire.client(server)
        middle = min(len(case.raw) // 2, 60)
        client.send(case.raw[:middle])
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        client.send(case.raw[middle:])
        assert (await client.answer())[0] == case.status, case.name
        await client.leave()
    assert wire.seen == []
