"""The part of a model hub that llama-server's repository mode speaks to: refs, the tree of a commit, and files.

``with RepositoryHub({"Org/Repo": {"weights.gguf": data}}) as hub`` serves on 127.0.0.1; ``hub.asked`` are the requests.
What it answers was worked out from what llama-server b10434 asks for.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

COMMIT = "1" * 40


class RepositoryHub:
    """See the module. Headers of the requests are kept beside their paths."""

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.asked: list[tuple[str, dict[str, str]]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def files_asked(self) -> list[str]:
        """Paths inside their repositories."""
        return [path.split(f"/resolve/{COMMIT}/")[1] for path, _ in self.asked if f"/resolve/{COMMIT}/" in path]

    def answer(self, path: str) -> bytes | None:
        for name, files in self.repositories.items():
            api = f"/api/models/{name}"
            if path == f"{api}/refs":
                return json.dumps(
                    {"branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": COMMIT}]}
                ).encode()
            if path == f"{api}/tree/{COMMIT}":
                return json.dumps([_row(file, data) for file, data in files.items()]).encode()
            prefix = f"/{name}/resolve/{COMMIT}/"
            if path.startswith(prefix):
                return files.get(path.removeprefix(prefix))
        return None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(body=True)

            def do_HEAD(self) -> None:
                self._answer(body=False)

            def _answer(self, *, body: bool) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.asked.append((path, {name.lower(): value for name, value in self.headers.items()}))
                data = hub.answer(path)
                found = data is not None
                data = data if data is not None else b"Entry not found"
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
                self.send_header("Accept-Ranges", "bytes")
                self.end_headers()
                if body:
                    self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
                """Silent: tests look at ``asked``."""

        return Handler


def _row(path: str, data: bytes) -> dict[str, object]:
    sha256 = hashlib.sha256(data).hexdigest()
    return {
        "type": "file",
        "oid": sha256[:40],
        "size": len(data),
        "path": path,
        "lfs": {"oid": sha256, "size": len(data), "pointerSize": 134},
    }
