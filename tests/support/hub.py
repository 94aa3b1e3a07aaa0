"""A model hub on 127.0.0.1 that speaks the real protocol over real sockets and misbehaves on request.

``with Hub({"Org/Repo/weights.gguf": data}) as hub`` serves every file at

* ``{hub.url}/Org/Repo/resolve/<any revision>/weights.gguf``, as a hub does: a 302 with ``X-Linked-Etag`` and
  ``X-Linked-Size`` to a second port, the content network, that refuses requests with an Authorization header;
* ``hub.file_url("Org/Repo/weights.gguf")``, as a plain web server does.

Answers carry ETags and honour ``Range`` and ``If-Range``. ``gated`` repositories need ``Bearer <token>``.
``hub.requests`` is what came, in order. ``hub.fault(kind, ...)`` queues misbehaviour; see :class:`Fault`.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote, unquote, urlsplit

Server = Literal["hub", "cdn"]
Kind = Literal[
    "truncate",  # announce all, send ``at`` bytes of this answer, close
    "drop",  # reset the connection instead of an answer
    "stall",  # send ``at`` bytes, then nothing until the hub closes
    "drip",  # send ``chunk`` bytes every ``pause`` seconds
    "change",  # send ``at`` bytes, close, and serve ``data`` under a new ETag from now on
    "status",  # answer ``status``, with Retry-After when ``retry_after`` is given
    "html",  # an HTML page with status 200; ``chunk`` > 0: as a stream of unknown length and no content type
    "ignore_range",  # 200 with all bytes, whatever was asked
    "wrong_range",  # 206 with a span that begins one byte late
    "no_content_range",  # 206 without Content-Range
    "range_unsatisfiable",  # 416
    "excess",  # no Content-Length, and ``chunk`` bytes too many
    "short",  # no Content-Length, and a clean end after ``at`` bytes
    "wrong_length",  # a Content-Length that is ``chunk`` too large, then all bytes and a close
    "encoded",  # claims gzip
    "unvalidated",  # all bytes, under the ``etag`` that the fault names
    "redirect_loop",
    "redirect_nowhere",  # a Location that is no web address
]
ON_REDIRECT = frozenset({"redirect_loop", "redirect_nowhere"})


@dataclass(slots=True)
class Fault:
    """One kind of misbehaviour for the next ``times`` matching answers. ``path``/``server``: ``None`` is any.

    Faults other than the redirect ones apply to the answer that would carry the bytes, unless ``server`` says so.
    """

    kind: Kind
    path: str | None = None
    server: Server | None = None
    times: int = 1
    at: int = 0
    chunk: int = 0
    pause: float = 0.0
    status: int = 500
    retry_after: str | None = None
    data: bytes = b""
    etag: Literal["strong", "weak", "none"] = "strong"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as it came; header names in lower case."""

    server: Server
    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)


class Hub:
    """See the module. ``redirect=False`` lets the hub itself carry the bytes."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        *,
        token: str | None = None,
        gated: Collection[str] = (),
        redirect: bool = True,
        linked: bool = True,
    ) -> None:
        self.files = dict(files)
        self.token = token
        self.gated = set(gated)
        self.redirect = redirect
        self.linked = linked
        self.requests: list[Recorded] = []
        self.body_bytes = 0
        self.busy = 0
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self._faults: list[Fault] = []
        self._servers = {"hub": _Server(self, "hub"), "cdn": _Server(self, "cdn")}

    def __enter__(self) -> Self:
        for server in self._servers.values():
            server.thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.closing.set()
        for server in self._servers.values():
            server.shutdown()
            server.thread.join()
            server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._servers['hub'].server_port}"

    @property
    def cdn_url(self) -> str:
        return f"http://127.0.0.1:{self._servers['cdn'].server_port}"

    def file_url(self, path: str) -> str:
        """The file without redirect, as a plain web server has it."""
        return f"{self.url}/plain/{quote(path)}"

    def fault(self, kind: Kind, **details: Any) -> None:
        """Queue a :class:`Fault`; those queued first apply first."""
        with self.lock:
            self._faults.append(Fault(kind, **details))

    def behave(self) -> None:
        """Forget the faults that are still queued."""
        with self.lock:
            self._faults.clear()

    def settle(self, timeout: float = 10.0) -> None:
        """Wait until no answer is being sent, also not into the sockets of clients that died."""
        deadline = time.monotonic() + timeout
        while self.busy:
            assert time.monotonic() < deadline, "the hub is still sending"
            time.sleep(0.005)

    def replace(self, path: str, data: bytes) -> None:
        """Change a file, and with it its ETag."""
        self.files[path] = data

    def asked(self, server: Server | None = None) -> list[Recorded]:
        return [request for request in self.requests if server in (None, request.server)]

    def take_fault(self, path: str, server: Server, *, redirecting: bool) -> Fault | None:
        with self.lock:
            for fault in self._faults:
                right_place = (
                    (fault.kind in ON_REDIRECT) == redirecting if fault.server is None else fault.server == server
                )
                if right_place and fault.path in (None, path) and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None


def etag_of(data: bytes) -> str:
    return f'"{hashlib.sha256(b"etag" + data).hexdigest()[:32]}"'


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub, name: Server) -> None:
        self.hub = hub
        self.name = name
        super().__init__(("127.0.0.1", 0), _Handler)
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), name=f"fake-{name}", daemon=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is part of the tests; anything else is a mistake in the hub and is shown."""
        import sys

        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Silent: tests look at ``hub.requests``."""

    def do_GET(self) -> None:
        hub = self.server.hub
        with hub.lock:
            hub.busy += 1
        try:
            self._get(hub, self.server.name)
        finally:
            with hub.lock:
                hub.busy -= 1

    def _get(self, hub: Hub, name: Server) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        with hub.lock:
            hub.requests.append(Recorded(name, self.command, self.path, headers))
        path = self._file_path()
        data = hub.files.get(path)
        if name == "cdn" and "authorization" in headers:
            self._plain(400, "only one auth mechanism allowed")
        elif name == "hub" and not self._allowed(path, headers):
            self._plain(401, "this repository is gated", {"X-Error-Code": "GatedRepo"})
        elif data is None:
            self._plain(404, "Entry not found", {"X-Error-Code": "EntryNotFound"})
        elif name == "hub" and hub.redirect and not self.path.startswith("/plain/"):
            self._redirect(path, data)
        else:
            self._serve(path, data)

    def _file_path(self) -> str:
        parts = [unquote(part) for part in urlsplit(self.path).path.lstrip("/").split("/")]
        if parts[0] in ("plain", "cdn"):
            return "/".join(parts[1:])
        return "/".join([*parts[:2], *parts[4:]])

    def _allowed(self, path: str, headers: Mapping[str, str]) -> bool:
        hub = self.server.hub
        repo = "/".join(path.split("/")[:2])
        return repo not in hub.gated or headers.get("authorization") == f"Bearer {hub.token}"

    def _redirect(self, path: str, data: bytes) -> None:
        hub = self.server.hub
        fault = hub.take_fault(path, "hub", redirecting=True)
        location = f"{hub.cdn_url}/cdn/{quote(path)}?X-Signature=canary-signature&Expires=1"
        if fault is not None and fault.kind == "status":
            self._plain(fault.status, "as asked", {"Retry-After": fault.retry_after} if fault.retry_after else {})
            return
        if fault is not None:
            location = self.path if fault.kind == "redirect_loop" else "ftp://files.example/x"
        self.send_response(302)
        self.send_header("Location", location)
        self.send_header("X-Repo-Commit", "0" * 40)
        if hub.linked:
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _serve(self, path: str, data: bytes) -> None:
        fault = self.server.hub.take_fault(path, self.server.name, redirecting=False)
        if fault is None:
            self._answer(data, None)
            return
        match fault.kind:
            case "drop":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
            case "status":
                self._plain(fault.status, "as asked", {"Retry-After": fault.retry_after} if fault.retry_after else {})
            case "html":
                self._page(streamed=fault.chunk > 0)
            case "range_unsatisfiable":
                self._plain(416, "", {"Content-Range": f"bytes */{len(data)}"})
            case _:
                self._answer(data, fault)
                if fault.kind == "change":
                    self.server.hub.replace(path, fault.data)

    def _answer(self, data: bytes, fault: Fault | None) -> None:
        kind = fault.kind if fault else None
        start = 0 if kind == "ignore_range" else self._range_start(data)
        if start is not None and start >= len(data):
            self._plain(416, "", {"Content-Range": f"bytes */{len(data)}"})
            return
        shift = 1 if kind == "wrong_range" and start else 0
        body = data[(start or 0) + shift :]
        self.send_response(206 if start else 200)
        self._head(data, body, start, shift, fault)
        self._send(body, fault)

    def _head(self, data: bytes, body: bytes, start: int | None, shift: int, fault: Fault | None) -> None:
        kind = fault.kind if fault else None
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Accept-Ranges", "bytes")
        validator = fault.etag if fault else "strong"
        if validator != "none":
            self.send_header("ETag", ("W/" if validator == "weak" else "") + etag_of(data))
        if kind == "encoded":
            self.send_header("Content-Encoding", "gzip")
        if start and kind != "no_content_range":
            self.send_header("Content-Range", f"bytes {start + shift}-{len(data) - 1}/{len(data)}")
        if kind in ("excess", "short"):
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header(
                "Content-Length", str(len(body) + (fault.chunk if fault and kind == "wrong_length" else 0))
            )
        self.end_headers()

    def _range_start(self, data: bytes) -> int | None:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        if asked is None or (condition is not None and condition != etag_of(data)):
            return 0
        return int(asked[1])

    def _send(self, body: bytes, fault: Fault | None) -> None:
        for piece in self._pieces(body, fault):
            self.wfile.write(piece)
            self.server.hub.body_bytes += len(piece)
        if fault and fault.kind in ("truncate", "change", "stall", "excess", "short", "wrong_length"):
            self.close_connection = True

    def _pieces(self, body: bytes, fault: Fault | None) -> Iterator[bytes]:
        match fault.kind if fault else None:
            case "truncate" | "change" | "short":
                assert fault is not None
                yield body[: fault.at]
            case "stall":
                assert fault is not None
                yield body[: fault.at]
                self.server.hub.closing.wait()
            case "excess":
                assert fault is not None
                yield body + b"\0" * fault.chunk
            case "drip":
                assert fault is not None
                for at in range(0, len(body), fault.chunk):
                    yield body[at : at + fault.chunk]
                    if self.server.hub.closing.wait(fault.pause):
                        return
            case _:
                yield body

    def _page(self, *, streamed: bool) -> None:
        page = b"<!DOCTYPE html>\n<html><body>Sign in to continue</body></html>" * 20
        self.send_response(200)
        if streamed:
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def _plain(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(body)
