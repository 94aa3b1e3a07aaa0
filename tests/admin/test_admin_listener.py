"""The listener on a real port, with and without TLS."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sbproxy.admin.app import build_app
from sbproxy.admin.listener import AdminListener
from sbproxy.admin.ports import AdminDeps
from sbproxy.config.core.document import AdminConfig, AdminTlsConfig
from sbproxy.errors.admin import AdminListenFailed, AdminTlsUnusable
from support.admin_world import ADMIN, AdminWorld, admin_config, admin_world


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def deps(world: AdminWorld, config: AdminConfig) -> AdminDeps:
    return AdminDeps(
        config=config,
        host=world.host,
        artifacts=world.artifacts,
        jobs=world.jobs,
        requests=world.log,
        reloader=world.reloader,
        health=lambda: world.health,
        metrics_text=world.metrics.text,
        value=world.value.report,
        devices=lambda: world.devices,
    )


def certificate(folder: Path) -> AdminTlsConfig:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return AdminTlsConfig(cert=str(folder / "cert.pem"), key=str(folder / "key.pem"))


async def test_start_serve_stop() -> None:
    async with admin_world() as world:
        config = admin_config(port=free_port())
        listener = AdminListener(build_app(deps(world, config)), config)
        async with listener, world.client.get(f"http://127.0.0.1:{config.port}/healthz") as answer:
            assert answer.status == 200
        await listener.stop()
        with socket.create_server(("127.0.0.1", config.port)):
            pass


async def test_a_taken_port_is_a_typed_refusal() -> None:
    async with admin_world() as world:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            config = admin_config(port=taken.getsockname()[1])
            with pytest.raises(AdminListenFailed, match=r"proxy\.admin\.port"):
                await AdminListener(build_app(deps(world, config)), config).start()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def closed(connection: Connection, timeout_s: float = 5.0) -> bool:
    try:
        return await asyncio.wait_for(connection[0].read(1), timeout_s) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


@asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[list[Connection]]:
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def test_whoever_does_not_finish_a_head_is_cut_off() -> None:
    async with admin_world() as world:
        config = admin_config(port=free_port())
        listener = AdminListener(build_app(deps(world, config)), config, head_timeout_s=0.4)
        async with listener, connected(config.port, 5) as connections:
            silent, half, dripping, served, streaming = connections
            half[1].write(b"GET /healthz HTTP/1.1\r\nHo")
            served[1].write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            basic = base64.b64encode(":".join(ADMIN).encode())
            streaming[1].write(
                b"GET /api/requests/stream HTTP/1.1\r\nHost: a\r\nAuthorization: Basic " + basic + b"\r\n\r\n"
            )
            assert (await served[0].readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200")
            await streaming[0].readuntil(b": connected\n\n")
            served[1].write(b"GET /healthz HTT")  # a second head, never finished
            dripping[1].write(b"GET /healthz HTTP/1.1\r\n")
            for _ in range(12):
                dripping[1].write(b"x: y\r\n")
                await asyncio.sleep(0.05)
            for slow in (silent, half, dripping, served):
                assert await closed(slow)
            assert not await closed(streaming, 0.1)


async def test_connections_are_bounded_and_their_places_given_back() -> None:
    async with admin_world() as world:
        config = admin_config(port=free_port())
        async with AdminListener(build_app(deps(world, config)), config, max_connections=3):
            async with connected(config.port, 3), connected(config.port, 20) as refused:
                assert all([await closed(connection) for connection in refused])
            await asyncio.sleep(0.05)
            async with world.client.get(f"http://127.0.0.1:{config.port}/healthz") as answer:
                assert answer.status == 200


async def test_whoever_does_not_finish_a_tls_handshake_is_cut_off(tmp_path: Path) -> None:
    async with admin_world() as world:
        config = admin_config(port=free_port(), tls=certificate(tmp_path))
        listener = AdminListener(build_app(deps(world, config)), config, head_timeout_s=0.2)
        async with listener, connected(config.port, 1) as (silent,):
            assert await closed(silent)


async def test_tls(tmp_path: Path) -> None:
    async with admin_world() as world:
        config = admin_config(port=free_port(), tls=certificate(tmp_path))
        trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        async with AdminListener(build_app(deps(world, config)), config):
            async with world.client.get(
                f"https://127.0.0.1:{config.port}/healthz", ssl=trust, server_hostname="localhost"
            ) as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientError):
                await world.client.get(f"http://127.0.0.1:{config.port}/healthz")


@pytest.mark.parametrize("broken", ["cert.pem", "key.pem"])
async def test_unusable_certificates_are_typed_refusals(tmp_path: Path, broken: str) -> None:
    async with admin_world() as world:
        for spoil in (lambda path: path.write_text("nonsense"), Path.unlink):
            config = admin_config(port=free_port(), tls=certificate(tmp_path))
            spoil(tmp_path / broken)
            with pytest.raises(AdminTlsUnusable, match=r"proxy\.admin\.tls"):
                await AdminListener(build_app(deps(world, config)), config).start()
