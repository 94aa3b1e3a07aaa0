"""The data-plane listener: accepts connections, watches their deadlines with one timer, drains and closes.

What a connection does with bytes is ``connection``'s; what a request means is the handler's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from time import perf_counter

from sbproxy.gateway.exchange import Handler
from sbproxy.gateway.http.body_budget import BodyBudget
from sbproxy.gateway.http.connection import ServerConnection
from sbproxy.gateway.http.fields import StatusLines
from sbproxy.gateway.http.limits import ServerLimits
from sbproxy.gateway.http.reader import BodyLimit

_BACKLOG = 1024
_SETTLE_S = 5.0


class HttpServer:
    """HTTP/1.1 on asyncio. ``handler`` runs once a request, in a task that is cancelled when the client leaves.

    ``body_limit`` gives the largest body for a host before that body is read; without it ``limits.body_bytes`` is.
    """

    def __init__(
        self,
        handler: Handler,
        limits: ServerLimits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        body_limit: BodyLimit | None = None,
    ) -> None:
        self.handler = handler
        self.limits = limits or ServerLimits()
        self.bodies = BodyBudget(self.limits.bodies_bytes)
        self.body_limit = body_limit or (lambda host: self.limits.body_bytes)
        self.status_lines = StatusLines()
        self.draining = False
        self.loop: asyncio.AbstractEventLoop
        self.connections: set[ServerConnection] = set()
        self.active_requests = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._quiet: asyncio.Event | None = None

    async def start(self, host: str, port: int, *, sock: socket.socket | None = None) -> None:
        """Listen; port 0 lets the system choose. ``sock`` is a socket that was bound to that address before.

        OSError when the address cannot be bound.
        """
        if self._server is not None:
            raise RuntimeError("the server was started before")
        self.loop = asyncio.get_running_loop()
        place = {"sock": sock} if sock is not None else {"host": host, "port": port}
        self._server = await self.loop.create_server(
            lambda: ServerConnection(self), backlog=_BACKLOG, ssl=self._tls, **place
        )
        self._sweep_timer = self.loop.call_later(self.limits.sweep_interval_s, self._sweep)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each listening socket; empty when none listens."""
        sockets = self._server.sockets if self._server is not None else ()
        return [sock.getsockname()[:2] for sock in sockets]

    @property
    def port(self) -> int:
        """The bound port; RuntimeError when nothing listens."""
        addresses = self.addresses
        if not addresses:
            raise RuntimeError("the server is not listening")
        return addresses[0][1]

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections live on. Idempotent."""
        if self._server is not None:
            self._server.close()

    async def drain(self, deadline_s: float) -> int:
        """Stop accepting, close idle connections, let running requests finish and close theirs with the answer.

        Returns how many connections were cut because they were not done after ``deadline_s`` seconds.
        """
        self.draining = True
        self.stop_accepting()
        for connection in list(self.connections):
            connection.close_if_idle()
        await self._until_quiet(deadline_s)
        cut = len(self.connections)
        if cut:
            await self.close()
        return cut

    async def close(self) -> None:
        """Stop accepting and drop every connection at once; the tasks of their requests are cancelled. Idempotent."""
        self.draining = True
        self.stop_accepting()
        for connection in list(self.connections):
            connection.leave()
        await self._until_quiet(_SETTLE_S)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    async def _until_quiet(self, timeout_s: float) -> None:
        if not self.connections and not self.active_requests:
            return
        quiet = self._quiet = self._quiet or asyncio.Event()
        quiet.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await quiet.wait()
        except TimeoutError:
            return

    def _sweep(self) -> None:
        self.status_lines.clear()
        now = perf_counter()
        for connection in list(self.connections):
            if connection.deadline < now:
                connection.expire(now)
            elif connection.read_paused:
                connection.look_for_departure()
        self._sweep_timer = self.loop.call_later(self.limits.sweep_interval_s, self._sweep)

    # --- what connections tell ------------------------------------------------------------------------------------

    def opened(self, connection: ServerConnection) -> bool:
        self.connections.add(connection)
        limit = self.limits.connections
        if len(self.connections) > limit + limit // 8 + 8:
            connection.leave()  # too many even to tell each of them why
        return len(self.connections) <= limit

    def closed(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        self.tell_quiet()

    def tell_quiet(self) -> None:
        if self._quiet is not None and not self.connections and not self.active_requests:
            self._quiet.set()
