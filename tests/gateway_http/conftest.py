"""Every wire test runs on asyncio's loop and on uvloop, and must leave no task and no socket behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from sbproxy.gateway.exchange import Exchange, Handler, Upstream
from sbproxy.gateway.http import HttpServer, ServerLimits, UpstreamPool
from support.gateway_wire import RawClient, Script, ScriptedUpstream

JSON = ((b"content-type", b"application/json"),)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


def _sockets() -> int:
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{entry}").startswith("socket:")
        except FileNotFoundError:
            continue
    return count


class Wire:
    """Starts servers, upstreams, pools and clients for one test and ends them."""

    def __init__(self) -> None:
        self.servers: list[HttpServer] = []
        self.upstreams: list[ScriptedUpstream] = []
        self.pools: list[UpstreamPool] = []
        self.clients: list[RawClient] = []
        self.seen: list[tuple[str, str, str, bytes]] = []

    async def echo(self, exchange: Exchange) -> None:
        """The plainest handler: notes the request and sends its body back."""
        request = exchange.request
        self.seen.append((request.method, request.path, request.query, request.body))
        exchange.respond(200, JSON, request.body)

    async def serve(self, handler: Handler | None = None, **limits: float) -> HttpServer:
        server = HttpServer(handler or self.echo, ServerLimits(**limits))  # type: ignore[arg-type]
        await server.start("127.0.0.1", 0)
        self.servers.append(server)
        return server

    async def client(self, server: HttpServer) -> RawClient:
        client = await RawClient.connect(server.port)
        self.clients.append(client)
        return client

    async def upstream(self, script: Script) -> tuple[Upstream, ScriptedUpstream]:
        scripted = ScriptedUpstream(script)
        self.upstreams.append(scripted)
        return Upstream("127.0.0.1", await scripted.start()), scripted

    def pool(self, **options: float) -> UpstreamPool:
        pool = UpstreamPool(**options)  # type: ignore[arg-type]
        self.pools.append(pool)
        return pool

    async def end(self) -> None:
        for client in self.clients:
            await client.leave()
        for server in self.servers:
            await server.close()
            assert server.active_requests == 0
            assert not server.connections
        for pool in self.pools:
            await pool.close()
            assert pool.in_use == pool.idle == 0
            assert not pool.open
        for upstream in self.upstreams:
            await upstream.stop()


async def _eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(200):
        if condition():
            return True
        await asyncio.sleep(0.005)
    return False


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    await asyncio.sleep(0)
    before, tasks = _sockets(), asyncio.all_tasks()
    wire = Wire()
    yield wire
    await wire.end()
    assert await _eventually(lambda: asyncio.all_tasks() <= tasks | {asyncio.current_task()}), asyncio.all_tasks()
    assert await _eventually(lambda: _sockets() <= before), "a socket was left open"


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[bool]]:
    return _eventually
