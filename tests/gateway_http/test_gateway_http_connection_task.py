"""One task serves all requests of a connection: it must survive what a handler does, and end with its connection."""

from __future__ import annotations

import asyncio

GET = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_one_task_serves_all_requests_of_a_connection_and_no_other(wire) -> None:
    tasks = []

    async def handler(exchange) -> None:
        tasks.append(asyncio.current_task())
        exchange.respond(200, (), b"")

    server = await wire.serve(handler)
    first, second = await wire.client(server), await wire.client(server)
    first.send(GET % b"1" + GET % b"2")
    assert [(await first.answer())[0] for _ in range(2)] == [200, 200]
    second.send(GET % b"3")
    await second.answer()
    first.send(GET % b"4")
    await first.answer()
    one, two, three, four = tasks
    assert one is two is four
    assert one is not three
    await first.leave()
    await asyncio.wait([one], timeout=5)
    assert one.done()
    assert not one.cancelled()
    assert not three.done()


async def test_a_handler_that_cancels_itself_ends_its_connection_and_no_other(wire) -> None:
    seen = []

    async def handler(exchange) -> None:
        seen.append(exchange.request.path)
        if exchange.request.path == "/cancel":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        exchange.respond(200, (), b"")

    server = await wire.serve(handler)
    client, other = await wire.client(server), await wire.client(server)
    client.send(GET % b"cancel" + GET % b"never")
    status, fields, _ = await client.answer()
    assert (status, fields[b"connection"]) == (500, b"close")
    assert await client.closed()
    other.send(GET % b"other")
    assert (await other.answer())[0] == 200
    assert seen == ["/cancel", "/other"]
    assert server.active_requests == 0


async def test_a_client_that_leaves_before_the_parked_task_wakes_was_never_served(wire) -> None:
    seen = []

    async def handler(exchange) -> None:
        seen.append((exchange.request.path, asyncio.current_task()))
        exchange.respond(200, (), b"")

    server = await wire.serve(handler)
    client = await wire.client(server)
    client.send(GET % b"first")
    await client.answer()
    (connection,) = server.connections
    connection.data_received(GET % b"second")
    assert server.active_requests == 1
    connection.leave()
    assert server.active_requests == 0
    task = seen[0][1]
    await asyncio.wait([task], timeout=5)
    assert task.done()
    assert [path for path, _ in seen] == ["/first"]


async def test_a_time_out_that_a_handler_survives_leaves_its_task_fit_for_the_next_request(wire) -> None:
    async def handler(exchange) -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            exchange.respond(504, (), b"")

    client = await wire.client(await wire.serve(handler))
    for _ in range(3):
        client.send(GET % b"")
        assert (await client.answer())[0] == 504
