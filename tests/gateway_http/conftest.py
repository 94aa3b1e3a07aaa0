"""Every wire test runs on asyncio's loop and on uvloop, and must leave no task and no socket behind."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sbproxy.gateway.exchange import Exchange, Handler, Upstream
from sbproxy.gateway.http import HttpServer, ServerLimits, UpstreamPool
from support.gateway_wire import RawClient, Script, ScriptedUpstream

JSON = ((b"content-type", b"application/json"),)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


def _sockets() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
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

    async def serve(
        self,
        handler: Handler | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        body_limit: Callable[[str], int] | None = None,
        **limits: float,
    ) -> HttpServer:
        server = HttpServer(handler or self.echo, ServerLimits(**limits), tls=tls, body_limit=body_limit)  # type: ignore[arg-type]
        await server.start("127.0.0.1", 0)
        self.servers.append(server)
        return server

    async def client(self, server: HttpServer, tls: ssl.SSLContext | None = None) -> RawClient:
        client = await RawClient.connect(server.port, tls)
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
            assert server.bodies.held == 0
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


@pytest.fixture(scope="session")
def certificate(tmp_path_factory) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "wire test")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


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
