"""Keep-alive connections to engines and providers, and the one retry that a stale idle connection earns.

It chooses, opens, keeps and drops connections, and keeps the head that goes to each upstream. What an answer says is
``reply``'s, when to ask is the pipeline's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
from time import perf_counter

from sbproxy.errors.gateway import UpstreamTimeout, UpstreamUnreachable
from sbproxy.gateway.exchange import NEVER, HeaderPairs, Upstream
from sbproxy.gateway.http.fields import field_lines
from sbproxy.gateway.http.reply import Reply
from sbproxy.gateway.http.upstream import UpstreamConnection

_TARGET = re.compile(r"/[!-~]*")
_METHOD = re.compile(r"[A-Z]{1,16}")
_HEADS_KEPT = 64
_SWEEP_S = 0.1
_CLOSE_S = 5.0


class _Place:
    """The connections to one upstream. A retired place keeps none: its upstream is gone."""

    __slots__ = ("_headers", "_heads", "_pool", "authority", "idle", "retired", "upstream")

    def __init__(self, pool: UpstreamPool, upstream: Upstream) -> None:
        self.upstream = upstream
        self.authority = upstream.authority
        self.idle: list[UpstreamConnection] = []
        self.retired = False
        self._pool = pool
        self._headers: HeaderPairs = ()
        self._heads: dict[tuple[str, str], bytes] = {}

    def head(self, method: str, path: str, headers: HeaderPairs) -> bytes:
        """The head without its length and end; ValueError when a part of it would break it.

        A provider and an engine send the same fields, the same object even, with every request. So whole heads are
        kept, for one such object at a time and for no longer than it: they hold its secret, as their sender does.
        """
        if headers is not self._headers:
            self._heads.clear()
            self._headers = headers
        return self._heads.get((method, path)) or self._write_head(method, path)

    def _write_head(self, method: str, path: str) -> bytes:
        if _METHOD.fullmatch(method) is None or _TARGET.fullmatch(path) is None:
            raise ValueError("an upstream request needs an upper-case method and a printable path")
        first = f"{method} {path} HTTP/1.1\r\nHost: {self.authority}\r\n".encode("ascii")
        head = b"".join((first, *field_lines(self._headers)))
        if type(self._headers) is tuple:  # anything else could change under us
            if len(self._heads) >= _HEADS_KEPT:
                self._heads.clear()
            self._heads[method, path] = head
        return head

    def take_idle(self) -> UpstreamConnection | None:
        """The connection that was used last, as the surest to be open still; None when a new one is needed."""
        while self.idle:
            connection = self.idle.pop()
            if connection.usable():
                self._pool.busy.add(connection)
                return connection
        return None

    def finished(self, connection: UpstreamConnection, *, reusable: bool) -> None:
        pool = self._pool
        pool.busy.discard(connection)
        if not reusable:
            return
        if self.retired or len(self.idle) >= pool.max_idle_per_upstream:
            connection.abort()
            return
        connection.deadline = perf_counter() + pool.idle_timeout_s
        self.idle.append(connection)

    def lost(self, connection: UpstreamConnection) -> None:
        pool = self._pool
        pool.busy.discard(connection)
        pool.open.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        pool.tell_empty()


class UpstreamPool:
    """Implements ``UpstreamClient``. Use it on one event loop; ``close`` it in the end."""

    def __init__(
        self,
        *,
        max_idle_per_upstream: int = 64,
        idle_timeout_s: float = 30.0,
        connect_timeout_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.max_idle_per_upstream = max_idle_per_upstream
        self.idle_timeout_s = idle_timeout_s
        self.connect_timeout_s = connect_timeout_s
        self.busy: set[UpstreamConnection] = set()
        self.open: set[UpstreamConnection] = set()
        self._tls = tls
        self._places: dict[Upstream, _Place] = {}
        self._recent: _Place | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None
        self._closed = False

    @property
    def in_use(self) -> int:
        """Connections with an unfinished answer."""
        return len(self.busy)

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return sum(len(place.idle) for place in self._places.values())

    async def send(
        self,
        upstream: Upstream,
        method: str,
        path: str,
        headers: HeaderPairs,
        body: bytes,
        *,
        timeout_s: float | None,
        until: float = NEVER,
    ) -> Reply:
        place = self._recent  # hashing an upstream is not free, and the next is often the last again
        if place is None or place.upstream is not upstream or place.retired:
            place = self._places.get(upstream)
            if place is None:
                place = self._places[upstream] = _Place(self, upstream)
            self._recent = place
        head = place.head(method, path, headers)
        if body or method in ("POST", "PUT", "PATCH"):
            head = b"%bContent-Length: %d\r\n\r\n" % (head, len(body))
        else:
            head += b"\r\n"
        connection = place.take_idle()
        fresh = connection is None
        while True:
            if connection is None:
                if self._closed:
                    raise UpstreamUnreachable(place.authority, "the gateway is shutting down")
                connection = await self._connect(place, timeout_s, until)
            reply = connection.request(head, body, method == "HEAD", timeout_s, until)
            if reply.pending():
                try:
                    await reply.waiter()
                except asyncio.CancelledError:
                    reply.close()
                    raise
            if reply.fault is None:
                return reply
            if fresh:
                reply.check()
                return reply
            if not reply.proves_stale():
                return reply
            connection, fresh = None, True

    async def _connect(self, place: _Place, timeout_s: float | None, until: float) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        upstream = place.upstream
        if until != NEVER:
            timeout_s = min(NEVER if timeout_s is None else timeout_s, max(0.0, until - perf_counter()))
        limit = self.connect_timeout_s if timeout_s is None else min(timeout_s, self.connect_timeout_s)
        try:
            async with asyncio.timeout(limit):
                host = await _public_address(upstream) if upstream.public_only else upstream.host
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(place, loop),
                    host,
                    upstream.port,
                    ssl=self._verifying() if upstream.tls else None,
                    server_hostname=upstream.host if upstream.tls else None,
                )
        except TimeoutError as error:
            if timeout_s is not None and timeout_s <= self.connect_timeout_s:
                raise UpstreamTimeout(place.authority, timeout_s) from error
            raise UpstreamUnreachable(place.authority, f"no connection within {limit:g} s") from error
        except OSError as error:
            raise UpstreamUnreachable(place.authority, _reason(error)) from error
        self.open.add(connection)
        self.busy.add(connection)
        if self._closed:
            connection.abort()
        elif self._sweep_timer is None:
            self._sweep_timer = loop.call_later(_SWEEP_S, self._sweep)
        return connection

    def _verifying(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _sweep(self) -> None:
        now = perf_counter()
        for connection in list(self.open):
            if connection.deadline < now:
                connection.expire()
        for upstream, place in list(self._places.items()):
            if not place.idle and not self.busy:
                del self._places[upstream]
                place.retired = True
        self._sweep_timer = None
        if self.open:
            self._sweep_timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def close_upstream(self, upstream: Upstream) -> None:
        """Forget an upstream: idle connections close now, busy ones when their answer is over."""
        place = self._places.pop(upstream, None)
        if place is None:
            return
        place.retired = True
        for connection in list(place.idle):
            connection.abort()

    async def close(self) -> None:
        """Close every connection at once; answers that wait break. Idempotent."""
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for connection in list(self.open):
            connection.abort()
        if self.open:
            self._empty = asyncio.Event()
            async with asyncio.timeout(_CLOSE_S):
                await self._empty.wait()

    def tell_empty(self) -> None:
        if self._empty is not None and not self.open:
            self._empty.set()


async def _public_address(upstream: Upstream) -> str:
    """An address of the name, to connect to exactly what was checked: a second look-up could answer otherwise.

    UpstreamUnreachable when any of the name's addresses is not public (server-side request forgery by name).
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(upstream.host, upstream.port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    if not addresses or not all(ipaddress.ip_address(address).is_global for address in addresses):
        reason = "the name leads to an address that is not public; set allow_private_base_url if that is meant"
        raise UpstreamUnreachable(upstream.authority, reason)
    return addresses[0]


def _reason(error: OSError) -> str:
    """What went wrong, without the addresses and call names that event loops put into it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection ({error.reason or 'handshake failed'})"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
