"""The roles that ``gateway/http`` plays for the pipeline. The pipeline knows these and nothing of sockets.

Header names are lower-case bytes everywhere on the inside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

NEVER = float("inf")
HeaderPairs = Sequence[tuple[bytes, bytes]]


@dataclass(slots=True, eq=False)
class Request:
    """One whole request: head and body are complete and within the limits. Nobody changes it.

    It is not frozen because that alone costs a microsecond for each request.

    ``headers`` leave out Content-Length: the wire has used it, and ``body`` is whole. ``path`` is the raw path without
    query, still percent-encoded; ``host`` is lower-case without port ('' if absent); ``received_at`` is
    ``time.perf_counter()`` at the first byte of the head.
    """

    method: str
    path: str
    query: str
    host: str
    headers: HeaderPairs
    body: bytes = field(repr=False)
    client_ip: str
    received_at: float

    def header(self, name: bytes) -> bytes | None:
        """The first value of a lower-case header name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Exchange(Protocol):
    """The answering side of one request. Exactly one of ``respond`` or ``start``…``finish``/``abort`` is used.

    When the client leaves, the task that runs the handler is cancelled: wherever it waits, CancelledError is raised.
    The server writes ``date``, ``connection``, ``content-length`` and ``transfer-encoding`` itself; giving one of them
    (or a name or value that would break the head) is a ValueError. The next request of the connection is read when the
    handler returns.
    """

    request: Request
    bytes_out: int

    def respond(self, status: int, headers: HeaderPairs, body: bytes) -> None:
        """Send a complete answer with Content-Length."""
        ...

    def start(self, status: int, headers: HeaderPairs) -> None:
        """Send the head of a streamed answer (chunked, or close-delimited for HTTP/1.0)."""
        ...

    def write(self, data: bytes) -> None:
        """Send a piece of the body. Never blocks; call ``drain`` afterwards when ``paused`` is true."""
        ...

    @property
    def paused(self) -> bool:
        """The client's socket is full; wait in ``drain`` before writing more."""
        ...

    async def drain(self) -> None:
        """Wait until the client takes bytes again."""
        ...

    def finish(self) -> None:
        """End a streamed answer properly."""
        ...

    def abort(self) -> None:
        """Cut a streamed answer so that the client can see it is incomplete (no final chunk), and close."""
        ...


Handler = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where to connect. ``tls`` verifies against the system's trust store with ``host`` as server name.

    ``public_only``: a name that leads to a loopback, private or otherwise special address is not connected to.
    """

    host: str
    port: int
    tls: bool = False
    public_only: bool = False

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class UpstreamResponse(Protocol):
    """An answer whose head has arrived. Close it, or read it to its end; both give the connection up."""

    status: int
    headers: HeaderPairs

    def header(self, name: bytes) -> bytes | None:
        """The first value of a lower-case header name."""
        ...

    async def read(self, limit: int) -> bytes:
        """The whole body; UpstreamBroken when it ends early, UpstreamTooLarge above ``limit`` bytes."""
        ...

    async def pour(self, into: Callable[[bytes], bool]) -> bool:
        """Give every piece of the body to ``into`` the moment it comes, for as long as that returns True.

        Returns True when ``into`` wants no more now (what comes meanwhile is kept, and the socket slowed down; pour
        again to go on), False when the body is over. UpstreamBroken on a cut. ``into`` must neither block nor raise.
        """
        ...

    def extend(self, seconds: float) -> None:
        """Move the ``until`` that the request was sent with."""
        ...

    def close(self) -> None:
        """Close the connection at once if the body is unfinished, so that the engine stops its work. Idempotent."""
        ...


class UpstreamClient(Protocol):
    """Keep-alive connections to engines and providers."""

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
    ) -> UpstreamResponse:
        """Send one request and return when the answer's head is here.

        A connection that dies before any byte of the answer is retried once on a fresh one only when it was a reused
        idle connection. ``timeout_s`` bounds the wait for the head and then every wait for more of the body; ``until``
        is the ``time.perf_counter()`` at which the whole answer must be here, however it comes. The client writes
        ``host``, ``content-length`` and the hop-by-hop headers itself; giving one of them is a ValueError. Raises
        UpstreamUnreachable, UpstreamTimeout or UpstreamBroken. Cancelling closes the connection.
        """
        ...
