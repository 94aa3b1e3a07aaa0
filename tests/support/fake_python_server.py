"""The server behind :mod:`support.fake_python_engine`: options by argparse, like the real ones, and a few endpoints.

What it prints in its failures was seen of vLLM 0.32 on the CPU. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMON = ("--host", "--port", "--served-model-name", "--kv-cache-dtype", "--cpu-offload-gb", "--tool-call-parser")
VALUED = {
    "vllm": (
        *("--max-model-len", "--max-num-seqs", "--tensor-parallel-size", "--gpu-memory-utilization", "--seed"),
        *("--kv-cache-memory-bytes", "--max-num-batched-tokens", "--swap-space", "--task", "--api-key"),
    ),
    "sglang": (
        *("--model-path", "--context-length", "--max-running-requests", "--tp-size", "--mem-fraction-static"),
        *("--max-total-tokens", "--chunked-prefill-size", "--schedule-conservativeness", "--api-key"),
    ),
}
BARE = {
    "vllm": (
        *("--enable-prefix-caching", "--no-enable-prefix-caching", "--enable-chunked-prefill", "--enforce-eager"),
        *("--enable-auto-tool-choice", "--disable-fastapi-docs", "--no-enable-log-requests"),
    ),
    "sglang": ("--is-embedding", "--enable-torch-compile", "--disable-radix-cache"),
}
FATAL = {
    "oom_exit": """(EngineCore pid=7) ERROR 12-01 02:43:14 [core.py:1510] torch.OutOfMemoryError: CUDA out of memory. \
Tried to allocate 9.00 GiB
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}""",
    "bad_file": """safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata
RuntimeError: Engine core initialization failed. See root cause above.""",
    "port_taken": "OSError: [Errno 98] Address already in use",
}


def parser_of(engine: str, without: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=engine, allow_abbrev=False)
    for name in (*COMMON, *VALUED[engine]):
        if name not in without:
            parser.add_argument(name, help="what it does")
    for name in BARE[engine]:
        if name not in without:
            parser.add_argument(name, action="store_true", help="what it does")
    if engine == "vllm":
        parser.add_argument("model_tag", nargs="?")
    return parser


def main(engine: str, home: str, without: str) -> None:
    words = sys.argv[1:]
    parser = parser_of(engine, without.split(","))
    if engine == "vllm":
        if words[:1] != ["serve"]:
            parser.error("invalid choice")
        words = words[1:]
    if "--help=all" in words:
        parser.print_help()
        return
    options = parser.parse_args(words)
    settings = json.loads((Path(home) / "settings.json").read_text())
    serve(engine, Path(home), options, settings)


def serve(engine: str, home: Path, options: argparse.Namespace, settings: dict[str, Any]) -> None:
    mode = settings["mode"]
    key = options.api_key if engine == "sglang" else os.environ.get("VLLM_API_KEY")
    if mode == "tells_key":
        sys.stdout.write(f"server_args=ServerArgs(api_key={key!r})\n")
        sys.stdout.flush()
    if mode in FATAL:
        sys.stderr.write(f"{FATAL[mode]}\n")
        raise SystemExit(1)
    model = options.model_tag if engine == "vllm" else options.model_path
    if not (Path(model) / "config.json").is_file():
        sys.stderr.write(f"OSError: {model} does not appear to have a file named config.json\n")
        raise SystemExit(1)
    server = ThreadingHTTPServer((options.host, int(options.port)), handler(key, options.served_model_name, mode))
    stop = threading.Event()
    if settings["ignore_term"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    instances = home / "instances"
    instances.mkdir(exist_ok=True)
    instance = {
        "pid": os.getpid(),
        "port": int(options.port),
        "argv": Path("/proc/self/cmdline").read_text().split("\0")[:-1],
        "environ": dict(os.environ),
    }
    partial = instances / f"{os.getpid()}.tmp"
    partial.write_text(json.dumps(instance))
    partial.replace(instances / f"{os.getpid()}.json")
    stop.wait()


def handler(key: str | None, alias: str, mode: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self.answer(503 if mode == "never_ready" else 200, None)
            elif key is not None and self.headers.get("Authorization") != f"Bearer {key}":
                self.answer(401, {"error": "Unauthorized"})
            elif self.path == "/v1/models":
                self.answer(200, {"object": "list", "data": [{"id": alias, "object": "model"}]})
            else:
                self.answer(404, {"detail": "Not Found"})

        def answer(self, status: int, body: Any) -> None:
            data = b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    return Handler
