"""CPU time that the gateway costs, beside nginx in the same run: a unary chat completion, and a relayed stream event.

Scenario A01 of the public SBproxy benchmark: about 190 bytes in, 353 out, 20 keep-alive connections, everything on
loopback. The figure is user and system time of the gateway's process tree divided by requests (or events).
Needs nginx and wrk; installs them with apt-get when it runs as root. ``--bare`` leaves the daemon out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import psutil
from event_upstream import consume

HERE = Path(__file__).resolve().parent
TOOLS = ("nginx", "wrk")
CONNECTIONS = 20
STREAMS = 20
KINDS = ("unary", "paced", "fast")

COMPLETION = (
    '{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,"message":'
    '{"role":"assistant","content":"' + "x" * 121 + '"},"finish_reason":"stop"}],'
    '"usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30}}'
)
REQUEST = '{"model":"bench","messages":[{"role":"user","content":"' + "y" * 130 + '"}]}'

NGINX = """
worker_processes 1; daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u;
  scgi_temp_path {dir}/s;
  {body}
}}
"""
FIXED = "server {{ listen 127.0.0.1:{port}; location / {{ default_type application/json; return 200 '{answer}'; }} }}"
PROXY = """
upstream to_{port} {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 1000000000; }}
server {{ listen 127.0.0.1:{port}; location / {{
  proxy_pass http://to_{port}; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }}
"""
DAEMON = """
proxy: {{bind_address: 127.0.0.1, http_bind_port: {port}}}
origins:
  localhost: {action}
  127.0.0.1: {action}
"""
ACTION = (
    "{{action: {{type: ai_proxy, providers: [{{name: bench, base_url: 'http://127.0.0.1:{upstream}/v1', "
    "allow_private_base_url: true, api_key: none, models: [bench]}}]}}}}"
)


@dataclass
class Row:
    """A gateway under measurement: a process and a port for each kind of upstream, and what was measured."""

    name: str
    places: dict[str, tuple[psutil.Process, int]]
    us: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    rates: list[float] = field(default_factory=list)
    rss_mb: float = 0.0


def require_tools() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not missing:
        return
    if os.geteuid() != 0:
        sys.exit(f"{' and '.join(missing)} missing; install with: apt-get install {' '.join(missing)}")
    subprocess.run(["apt-get", "install", "-y", "-q", *missing], check=True, stdout=subprocess.DEVNULL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(argv: list[str], port: int, log: Path, cwd: Path) -> Iterator[psutil.Process]:
    """The process until the end of the block; it is ready when its port accepts."""
    with log.open("wb") as output, subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, cwd=cwd) as process:
        try:
            deadline = time.monotonic() + 20
            while not _accepts(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{argv[0]} did not start:\n{log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.05)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Scene:
    """Starts everything in a temporary directory and ends it again."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sbproxy-bench-")))
        self.upstreams = {
            "unary": self._nginx(lambda port: FIXED.format(port=port, answer=COMPLETION))[1],
            "paced": self._python("event_upstream.py", "0.002")[1],
            "fast": self._python("event_upstream.py", "0")[1],
        }

    def _start(self, argv: list[str], port: int) -> psutil.Process:
        return self.stack.enter_context(running(argv, port, self.directory / f"{port}.log", HERE.parent))

    def _nginx(self, body: Callable[[int], str]) -> tuple[psutil.Process, int]:
        port = free_port()
        directory = self.directory / f"nginx-{port}"
        directory.mkdir()
        config = directory / "nginx.conf"
        config.write_text(NGINX.format(dir=directory, body=body(port)))
        return self._start(["nginx", "-c", str(config), "-e", str(directory / "error.log")], port), port

    def _python(self, script: str, *arguments: str) -> tuple[psutil.Process, int]:
        port = free_port()
        return self._start([sys.executable, str(HERE / script), str(port), *arguments], port), port

    def row(self, name: str, start: Callable[[int], tuple[psutil.Process, int]]) -> Row:
        return Row(name, {kind: start(upstream) for kind, upstream in self.upstreams.items()})

    def nginx(self, upstream: int) -> tuple[psutil.Process, int]:
        return self._nginx(lambda port: PROXY.format(port=port, upstream=upstream))

    def bare(self, upstream: int) -> tuple[psutil.Process, int]:
        return self._python("bare_proxy.py", str(upstream))

    def daemon(self, upstream: int) -> tuple[psutil.Process, int]:
        port = free_port()
        config = self.directory / f"sb-{port}.yml"
        config.write_text(DAEMON.format(port=port, action=ACTION.format(upstream=upstream)))
        program = Path(sys.executable).parent / "sbproxy"
        return self._start([str(program), "serve", str(config)], port), port


def _nginx_version() -> str:
    shown = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr
    found = re.search(r"nginx/(\S+)", shown)
    return found[1] if found else "?"


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of the process and its living children."""
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        times = member.cpu_times()
        total += times.user + times.system
    return total


def measure_unary(row: Row, script: Path, seconds: float) -> None:
    process, port = row.places["unary"]
    before = cpu_seconds(process)
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    argv = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", "-s", str(script), "-H", "Host: localhost", url]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    spent = cpu_seconds(process) - before
    found = re.search(r"(\d+) requests in", output)
    if "Non-2xx" in output or "Socket errors" in output or found is None:
        sys.exit(f"{row.name} failed requests:\n{output}")
    row.us["unary"].append(spent / int(found[1]) * 1e6)
    row.rates.append(int(found[1]) / seconds)
    members = (process, *process.children(recursive=True))
    row.rss_mb = sum(member.memory_info().rss for member in members) / 1e6


def measure_events(row: Row, kind: str) -> None:
    process, port = row.places[kind]
    before = cpu_seconds(process)
    events = asyncio.run(consume(port, STREAMS))
    row.us[kind].append((cpu_seconds(process) - before) / events * 1e6)


def print_table(rows: list[Row]) -> None:
    cpu = platform.processor() or platform.machine()
    print(f"{platform.system()} {platform.release()}, {cpu}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    print(f"sbproxy {version('sbproxy')}, httptools {version('httptools')}, uvloop {version('uvloop')}")
    print(f"{CONNECTIONS} connections, {len(REQUEST)} bytes in, {len(COMPLETION)} out; {STREAMS} streams")
    print("CPU in microseconds, median over the rounds, (best), and the multiple of nginx's median\n")
    print("| gateway | a request | requests/s | a paced event | a fast event | RSS MB |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        cells = [_cell(row.us[kind], rows[0].us[kind]) for kind in KINDS]
        rate = statistics.median(row.rates)
        print(f"| {row.name} | {cells[0]} | {rate:.0f} | {cells[1]} | {cells[2]} | {row.rss_mb:.0f} |")
    print("\nTo reach: 45 a request without a key and at most 4 times nginx; 12 an event.")


def _cell(figures: list[float], nginx: list[float]) -> str:
    median = statistics.median(figures)
    return f"{median:.1f} ({min(figures):.1f}) x{median / statistics.median(nginx):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bare", action="store_true", help="measure nginx and gateway/http only, not the daemon")
    parser.add_argument("--rounds", type=int, default=3, help="how often each gateway is measured, in turn (default 3)")
    parser.add_argument("--seconds", type=float, default=5, help="length of a unary measurement (default 5)")
    options = parser.parse_args()
    require_tools()
    with ExitStack() as stack:
        scene = Scene(stack)
        script = scene.directory / "post.lua"
        script.write_text(
            f"wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\nwrk.body = '{REQUEST}'\n"
        )
        rows = [
            scene.row(f"nginx {_nginx_version()} proxy_pass", scene.nginx),
            scene.row("gateway/http alone", scene.bare),
            *(() if options.bare else (scene.row("sbproxy serve", scene.daemon),)),
        ]
        for at in range(options.rounds):
            for row in rows:
                print(f"round {at + 1} of {options.rounds}: {row.name}", file=sys.stderr)
                measure_unary(row, script, options.seconds)
                measure_events(row, "paced")
                measure_events(row, "fast")
    print_table(rows)


if __name__ == "__main__":
    main()
