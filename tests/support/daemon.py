"""A real ``sbproxy serve`` as a child process, for end-to-end tests: start, wait, ask, stop, kill."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSWORD = "correct-horse-battery"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Daemon:
    """One daemon process. ``log`` is its stderr, kept in a file so that a full pipe never blocks it."""

    directory: Path
    port: int
    admin_port: int
    environ: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    arguments: list[str] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.directory / "sb.yml"

    @property
    def log(self) -> str:
        path = self.directory / "daemon.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *, wait: bool = True, timeout_s: float = 60) -> None:
        with (self.directory / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sbproxy_cli", "serve", str(self.config), *self.arguments],
                stdout=log,
                stderr=log,
                env=self.environ,
                start_new_session=True,
            )
        if wait:
            self.wait_ready(timeout_s)

    def wait_ready(self, timeout_s: float = 60) -> None:
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the daemon ended with {self.process.returncode}:\n{self.log}"
            try:
                if self.ask("GET", "/readyz", admin=True, auth=False).status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"the daemon was not ready in {timeout_s} s:\n{self.log}")

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        admin: bool = False,
        auth: bool = True,
        host: str = "localhost",
        timeout_s: float = 60,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request on a fresh connection. Objects are sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port if admin else self.port, timeout=timeout_s)
        sent = {"Host": host, **(headers or {})}
        if admin and auth:
            sent["Authorization"] = "Basic " + base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def chat(self, model: str = "tiny", *, content: str = "hello", timeout_s: float = 60, **more: Any) -> Answer:
        body = {"model": model, "messages": [{"role": "user", "content": content}], **more}
        return self.ask("POST", "/v1/chat/completions", body, timeout_s=timeout_s)

    def status_row(self, deployment: str = "tiny") -> dict[str, Any]:
        rows = self.ask("GET", "/admin/model-host/status", admin=True).json()["deployments"]
        row: dict[str, Any] = next(row for row in rows if row["deployment"] == deployment)
        return row

    def wait_state(self, state: str, deployment: str = "tiny", timeout_s: float = 30) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        row = self.status_row(deployment)
        while row["state"] != state:
            assert time.monotonic() < deadline, f"{deployment} is {row}, not {state}\n{self.log}"
            time.sleep(0.05)
            row = self.status_row(deployment)
        return row

    def stop(self, timeout_s: float = 40) -> int:
        """SIGTERM and the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, as the kernel would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)


@contextmanager
def daemon(directory: Path, config: str, **environ: str) -> Iterator[Daemon]:
    """A daemon with ``{port}``, ``{admin_port}``, ``{dir}`` filled into ``config``; not started yet, ended at exit."""
    port, admin_port = free_port(), free_port()
    directory.mkdir(parents=True, exist_ok=True)
    text = config.replace("{port}", str(port)).replace("{admin_port}", str(admin_port)).replace("{dir}", str(directory))
    (directory / "sb.yml").write_text(text)
    base = {key: value for key, value in os.environ.items() if not key.startswith(("SB_", "HF_", "SBPROXY_"))}
    handle = Daemon(directory, port, admin_port, {**base, "SB_ADMIN_PASSWORD": PASSWORD, **environ})
    try:
        yield handle
    finally:
        if handle.process is not None and handle.process.poll() is None:
            handle.process.terminate()
            try:
                handle.process.wait(40)
            except subprocess.TimeoutExpired:
                handle.kill()


def tiny_model(directory: Path, name: str = "tiny.gguf") -> tuple[str, str, int]:
    """A file that the fake engine takes for a model: (path, sha256, size)."""
    data = b"GGUF" + bytes(range(256)) * 16
    path = directory / name
    path.write_bytes(data)
    return str(path), hashlib.sha256(data).hexdigest(), len(data)


def tiny_catalog(directory: Path, source: str | None = None) -> Path:
    """A catalog v2 document with one model ``tiny-model`` from a ``file:`` source (contracts section 48)."""
    _, sha256, size = tiny_model(directory)
    path = directory / "catalog.yml"
    path.write_text(
        f"""schema_version: 2
catalog_revision: test-1
models:
  tiny-model:
    params: 1M
    license: apache-2.0
    family: tiny
    context_length: 512
    variants:
      - id: q4
        format: gguf
        quant: Q4_0
        engines: [llama_cpp]
        source: {source or f"file:{directory}"}
        revision: "0000000000000000000000000000000000000001"
        files:
          - path: tiny.gguf
            sha256: {sha256}
            size_bytes: {size}
        requirements:
          accelerators: [cpu, metal, cuda]
          min_memory_bytes: 1
        stability: preview
        certification: test
"""
    )
    return path


FAKE_ENGINE_CONFIG = """
proxy:
  http_bind_port: {port}
  bind_address: 127.0.0.1
  admin:
    enabled: true
    port: {admin_port}
    username: admin
    password: "${SB_ADMIN_PASSWORD}"
    rate_limit_per_minute: 100000
  model_host:
    catalog_file: catalog.yml
    shutdown_deadline_ms: 5000
    cache: {directory: "{dir}/cache"}
    engines: {llama_cpp: {path: "{dir}/llama-server"}}
    deployments:
      tiny: {model: tiny-model, max_concurrency: 4, max_queue_depth: 64, queue_timeout_ms: 20000}
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - name: local
          provider_type: managed_model
          deployment: tiny
          models: [tiny, "org/tiny:q4#1"]
          default_model: tiny
"""
