"""The listener over TLS: the same answers, the same refusals, the same end for clients that leave."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

POST = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def contexts(certificate: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate)
    return server, ssl.create_default_context(cafile=str(certificate))


async def test_requests_are_served_and_refused(wire, contexts) -> None:
    server = await wire.serve(tls=contexts[0])
    client = await wire.client(server, contexts[1])
    client.send(POST + POST)
    assert [(await client.answer())[2] for _ in range(2)] == [b"{}", b"{}"]
    client.send(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n")
    assert (await client.answer())[0] == 400
    async with asyncio.timeout(1):
        assert await client.closed()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_leaves_cancels_its_request(wire, contexts, how: str) -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(exchange) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    client = await wire.client(await wire.serve(handler, tls=contexts[0]), contexts[1])
    client.send(POST)
    await entered.wait()
    if how == "reset":
        client.vanish()
    else:
        client.writer.close()
    async with asyncio.timeout(1):
        await cancelled.wait()


async def test_a_client_that_speaks_no_tls_harms_nobody(wire, contexts) -> None:
    server = await wire.serve(tls=contexts[0])
    plain = await wire.client(server)
    plain.send(POST)
    async with asyncio.timeout(2):
        await plain.rest()
    client = await wire.client(server, contexts[1])
    client.send(POST)
    assert (await client.answer())[0] == 200
    assert wire.seen == [("POST", "/v1/x", "", b"{}")]
