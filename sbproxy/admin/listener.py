"""The admin listener: takes the port, serves the application, gives everything back."""

from __future__ import annotations

import ssl
from typing import Self

from aiohttp import web

from sbproxy.config.core.document import AdminConfig, AdminTlsConfig
from sbproxy.errors.admin import AdminListenFailed, AdminTlsUnusable

SHUTDOWN_S = 3.0
"""How long requests in flight may take to end once the listener stops; streams end at once."""


class AdminListener:
    """``async with AdminListener(app, config)``, or ``start`` and ``stop``."""

    def __init__(self, app: web.Application, config: AdminConfig) -> None:
        self._config = config
        # Nobody waits for a request that a keep-alive connection may send later.
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=SHUTDOWN_S, keepalive_timeout=75, lingering_time=2
        )

    async def start(self) -> None:
        """Raises AdminListenFailed or AdminTlsUnusable; nothing stays open then."""
        tls = _tls_context(self._config.tls) if self._config.tls else None
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._config.bind, self._config.port, ssl_context=tls).start()
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


def _tls_context(config: AdminTlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.cert, config.key)
    except OSError as error:
        # ssl.SSLError is an OSError too: a missing file and a wrong key end here alike.
        raise AdminTlsUnusable(config.cert, config.key, error.strerror or str(error)) from error
    return context
