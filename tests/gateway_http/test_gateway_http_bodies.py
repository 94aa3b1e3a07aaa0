"""How much of request bodies is held and how much work they may make: per host, over all connections, per chunk."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType

import orjson
import pytest

from sbproxy.gateway.exchange import Exchange
from sbproxy.gateway.http.body_budget import BodyBudget
from sbproxy.gateway.http.chunked import ChunkedBody

HEAD = b"POST / HTTP/1.1\r\nHost: %b\r\n"
LIMITS = {"small.test": 5_000, "large.test": 300_000}


def sized(host: bytes, size: int) -> bytes:
    return HEAD % host + b"Content-Length: %d\r\n\r\n" % size


class TestLimitOfAHost:
    async def test_a_length_above_it_is_refused_before_the_body_is_sent(self, wire) -> None:
        server = await wire.serve(body_limit=LIMITS.__getitem__)
        client = await wire.client(server)
        client.send(HEAD % b"small.test" + b"Expect: 100-continue\r\nContent-Length: 5001\r\n\r\n")
        status, _, body = await client.answer()
        assert status == 413
        assert orjson.loads(body)["error"]["code"] == "body_too_large"
        assert "5000 bytes" in orjson.loads(body)["error"]["message"]
        assert await client.closed()
        assert wire.seen == []

    async def test_chunks_are_refused_as_soon_as_they_exceed_it(self, wire) -> None:
        server = await wire.serve(body_limit=LIMITS.__getitem__)
        client = await wire.client(server)
        client.send(HEAD % b"small.test" + b"Transfer-Encoding: chunked\r\n\r\n")
        client.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        client.send(b"389\r\n")  # 905 more, none of which was sent yet
        assert (await client.answer())[0] == 413

    async def test_it_may_be_larger_than_the_default(self, wire) -> None:
        server = await wire.serve(body_limit=LIMITS.__getitem__, body_bytes=100)
        client = await wire.client(server)
        client.send(sized(b"large.test", 300_000) + b"y" * 300_000)
        status, _, body = await client.answer()
        assert (status, len(body)) == (200, 300_000)


class TestBudgetOfAllConnections:
    async def test_a_body_that_finds_no_room_is_told_to_come_back(self, wire, eventually) -> None:
        server = await wire.serve(bodies_bytes=100_000)
        first, second, third = [await wire.client(server) for _ in range(3)]
        first.send(sized(b"a", 90_000) + b"x" * 60_000)
        assert await eventually(lambda: server.bodies.held == 60_000)
        second.send(sized(b"a", 80_000))
        status, fields, body = await second.answer()
        assert (status, fields[b"retry-after"]) == (503, b"1")
        error = orjson.loads(body)["error"]
        assert (error["type"], error["code"]) == ("server_error", "overloaded")
        first.send(b"x" * 30_000)
        assert (await first.answer())[0] == 200
        assert server.bodies.held == 0
        third.send(sized(b"a", 80_000) + b"x" * 80_000)
        assert (await third.answer())[0] == 200

    async def test_chunks_are_refused_in_the_middle(self, wire, eventually) -> None:
        server = await wire.serve(bodies_bytes=100_000)
        first, second = await wire.client(server), await wire.client(server)
        first.send(sized(b"a", 90_000) + b"x" * 60_000)
        assert await eventually(lambda: server.bodies.held == 60_000)
        second.send(HEAD % b"a" + b"Transfer-Encoding: chunked\r\n\r\n" + b"c350\r\n" + b"x" * 50_000)
        status, fields, _ = await second.answer()
        assert (status, fields[b"retry-after"]) == (503, b"1")
        assert await eventually(lambda: server.bodies.held == 60_000)

    async def test_a_body_counts_until_its_request_is_over(self, wire, eventually) -> None:
        goes_on = asyncio.Event()

        async def slow(exchange: Exchange) -> None:
            held.append(server.bodies.held)
            await goes_on.wait()
            exchange.respond(200, (), b"")

        held: list[int] = []
        server = await wire.serve(slow, bodies_bytes=100_000)
        first, second = await wire.client(server), await wire.client(server)
        first.send(sized(b"a", 60_000) + b"x" * 60_000)
        assert await eventually(lambda: bool(held))
        second.send(sized(b"a", 60_000))
        assert (await second.answer())[0] == 503
        goes_on.set()
        assert (await first.answer())[0] == 200
        assert held == [60_000]
        assert server.bodies.held == 0

    @pytest.mark.parametrize("answering", [False, True])
    async def test_a_client_that_leaves_gives_back_what_it_held(self, wire, eventually, answering: bool) -> None:
        async def never(exchange: Exchange) -> None:
            await asyncio.Event().wait()

        server = await wire.serve(never)
        client = await wire.client(server)
        client.send(sized(b"a", 50_000 if answering else 60_000) + b"x" * 50_000)
        assert await eventually(lambda: server.bodies.held == 50_000)
        await client.leave()
        assert await eventually(lambda: server.bodies.held == 0)

    async def test_a_body_larger_than_the_budget_is_taken_when_it_is_alone(self, wire) -> None:
        server = await wire.serve(bodies_bytes=50_000)
        client = await wire.client(server)
        for _ in range(2):
            client.send(sized(b"a", 200_000) + b"x" * 200_000)
            assert (await client.answer())[0] == 200

    def test_what_does_not_fit_is_not_held(self) -> None:
        budget = BodyBudget(10)
        assert budget.take(8, 0)
        assert not budget.take(3, 0)
        assert budget.held == 8
        assert budget.take(2, 0)
        budget.give_back(10)
        assert budget.held == 0


def _calls(body: bytes) -> int:
    """How many functions of chunked.py run to take ``body`` apart, in segments as a socket brings them."""
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.endswith("chunked.py")

    reader = ChunkedBody(64 << 20)
    sys.setprofile(note)
    try:
        for at in range(0, len(body), 65536):
            fault = reader.feed(body[at : at + 65536])
            if fault is not None:
                assert fault.status == 400
                return -count
    finally:
        sys.setprofile(None)
    assert reader.done
    return count


class TestWorkOfChunks:
    def test_it_grows_with_the_bytes_and_no_faster(self) -> None:
        chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
        once, twice = (_calls(chunk * count + b"0\r\n\r\n") for count in (5_000, 10_000))
        assert 0 < once < 5_000 * 5
        assert twice <= 2 * once

    @pytest.mark.parametrize("size", [1, 12, 100])
    def test_a_large_body_of_tiny_chunks_is_refused_early(self, size: int) -> None:
        chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
        spent = _calls(chunk * (8_000_000 // size))
        assert -5_000 * 5 < spent < 0

    def test_a_small_body_may_come_in_small_chunks(self) -> None:
        assert _calls(b"8\r\n01234567\r\n" * 4_000 + b"0\r\n\r\n") > 0


@pytest.mark.parametrize("name", [b"Content-Type", b"Content-Encoding"])
async def test_a_field_that_says_what_the_body_is_comes_once(wire, name: bytes) -> None:
    server = await wire.serve()
    client = await wire.client(server)
    client.send(HEAD % b"a" + name + b": application/json\r\n" + name.lower() + b": x\r\nContent-Length: 2\r\n\r\n{}")
    status, _, body = await client.answer()
    assert status == 400
    assert name.decode() in orjson.loads(body)["error"]["message"]
    assert wire.seen == []
