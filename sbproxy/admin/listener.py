"""The admin listener: takes the port, serves the application, gives everything back.

Bounds what callers cost before they have said anything: how many connections there are, and how long one stays silent.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Self, cast

from aiohttp import web

from sbproxy.config.core.document import AdminConfig, AdminTlsConfig
from sbproxy.errors.admin import AdminListenFailed, AdminTlsUnusable

SHUTDOWN_S = 3.0
"""How long requests in flight may take to end once the listener stops; streams end at once."""
HEAD_TIMEOUT_S = 15.0
"""From the connection, or the answer before, to the last byte of a head."""
MAX_CONNECTIONS = 256


class AdminListener:
    """``async with AdminListener(app, config)``, or ``start`` and ``stop``."""

    def __init__(
        self,
        app: web.Application,
        config: AdminConfig,
        *,
        head_timeout_s: float = HEAD_TIMEOUT_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._config = config
        self._head_timeout_s = head_timeout_s
        self._max_connections = max_connections
        # aiohttp starts this clock with the connection and after each answer, and only a whole head stops it.
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=SHUTDOWN_S, keepalive_timeout=head_timeout_s, lingering_time=2
        )

    async def start(self) -> None:
        """Raises AdminListenFailed or AdminTlsUnusable; nothing stays open then."""
        tls = _tls_context(self._config.tls) if self._config.tls else None
        await self._runner.setup()
        site = _DoorSite(self._runner, self._config, tls, self._head_timeout_s, self._max_connections)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            reason = error.strerror or str(error)
            raise AdminListenFailed(self._config.bind, self._config.port, reason) from error

    async def stop(self) -> None:
        """Idempotent."""
        await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class _DoorSite(web.BaseSite):
    """As aiohttp's own TCP site, with a doorman before each connection and a bound on the TLS handshake."""

    def __init__(
        self,
        runner: web.AppRunner,
        config: AdminConfig,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
        max_connections: int,
    ) -> None:
        super().__init__(runner, ssl_context=tls)
        self._bind, self._port = config.bind, config.port
        self._handshake_timeout_s = handshake_timeout_s if tls else None
        self._max_connections = max_connections

    @property
    def name(self) -> str:
        return f"{'https' if self._ssl_context else 'http'}://{self._bind}:{self._port}"

    async def start(self) -> None:
        await super().start()
        # The constructor has refused a runner without one.
        server = cast("web.Server", self._runner.server)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Doorman(server, self._max_connections),
            self._bind,
            self._port,
            ssl=self._ssl_context,
            ssl_handshake_timeout=self._handshake_timeout_s,
            backlog=self._backlog,
        )


class _Doorman(asyncio.Protocol):
    """Hands a new connection on to the server, or drops it when there are too many."""

    def __init__(self, server: web.Server, max_connections: int) -> None:
        self._server = server
        self._max_connections = max_connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        if len(self._server.connections) >= self._max_connections:
            stream.abort()
            return
        protocol = self._server()
        stream.set_protocol(protocol)
        protocol.connection_made(stream)


def _tls_context(config: AdminTlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.cert, config.key)
    except OSError as error:
        # ssl.SSLError is an OSError too: a missing file and a wrong key end here alike.
        raise AdminTlsUnusable(config.cert, config.key, error.strerror or str(error)) from error
    return context
