"""A stand-in that speaks the command line and the HTTP protocol of ``mistralrs serve``, without a model.

Options, their help, the listing of models ("default" and the path given with ``-m``) and the exit texts follow the
published command-line reference and server; it loads a snapshot only as far as to see that its files are whole.
:func:`install` writes a program that runs this file.
"""

from __future__ import annotations

import http.server
import json
import shlex
import sys
from pathlib import Path
from typing import Any

GLOBAL_HELP = """Fast LLM inference engine

Usage: mistralrs [OPTIONS] <COMMAND>

Commands:
  serve        Start HTTP/MCP server and (optionally) the UI at /ui
  help         Print this message or the help of the given subcommand(s)

Options:
  -h, --help     Print help
  -V, --version  Print version
"""

# (short, long, value name, explanation)
SERVE_OPTIONS: list[tuple[str, str, str, str]] = [
    ("-m", "--model-id", "MODEL_ID", "HuggingFace model ID or local path to model directory"),
    ("-t", "--tokenizer", "TOKENIZER", "Path to local tokenizer.json file"),
    ("", "--dtype", "DTYPE", "Model data type"),
    ("-f", "--quantized-file", "QUANTIZED_FILE", "Quantized model filename(s) for GGUF/GGML"),
    ("", "--isq", "IN_SITU_QUANT", "In-situ quantization"),
    ("", "--cpu", "", "Force CPU-only execution"),
    ("-n", "--device-layers", "DEVICE_LAYERS", "Device layer mapping"),
    ("", "--max-seq-len", "MAX_SEQ_LEN", "Max sequence length for automatic device mapping"),
    ("", "--paged-attn", "MODE", "PagedAttention mode"),
    ("", "--pa-context-len", "CONTEXT_LEN", "Allocate KV cache for this context length"),
    ("-p", "--port", "PORT", "HTTP server port"),
    ("", "--host", "HOST", "Bind address"),
    ("", "--no-ui", "", "Disable the built-in web UI"),
    ("", "--max-seqs", "MAX_SEQS", "Maximum concurrent sequences"),
    ("", "--no-kv-cache", "", "Disable KV cache entirely"),
    ("", "--prefix-cache-n", "PREFIX_CACHE_N", "Number of prefix caches to hold (0 to disable)"),
    ("", "--token-source", "TOKEN_SOURCE", "Token source for HuggingFace authentication"),
    ("-h", "--help", "", "Print help (see a summary with '-h')"),
    ("-V", "--version", "", "Print version"),
]


def install(folder: Path, *, version: str = "0.9.0", without: tuple[str, ...] = ()) -> Path:
    """Write ``folder/mistralrs`` and return it; ``without`` takes option names away from this build."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "mistralrs"
    program.write_text(script(version, without))
    program.chmod(0o755)
    return program


def script(version: str = "0.9.0", without: tuple[str, ...] = ()) -> str:
    """The program itself, for an archive."""
    words = [sys.executable, "-S", "-E", str(Path(__file__).resolve()), version, ",".join(without)]
    return f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'


def serve_help(without: tuple[str, ...] = ()) -> str:
    """As clap prints a long help: each option's explanation on a line of its own."""
    lines = ["Start HTTP/MCP server and (optionally) the UI at /ui", "", "Usage: mistralrs serve [OPTIONS] [COMMAND]"]
    lines += ["", "Options:"]
    for short, long, value, explanation in SERVE_OPTIONS:
        if long not in without:
            names = f"{short}, {long}" if short else f"    {long}"
            lines += [f"  {names}{f' <{value}>' if value else ''}", f"          {explanation}", ""]
    return "\n".join(lines)


class _Refused(Exception):
    """A command line that clap refuses."""


def parse(words: list[str], without: tuple[str, ...]) -> dict[str, str]:
    """Long name to value (empty for a switch)."""
    known = {long: value for _, long, value, _ in SERVE_OPTIONS if long not in without}
    longs = {short: long for short, long, _, _ in SERVE_OPTIONS if short}
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word, equals, inline = rest.pop(0).partition("=")
        long = longs.get(word, word)
        if long not in known:
            raise _Refused(f"unexpected argument '{word}' found")
        if long in found:
            raise _Refused(f"the argument '{long}' cannot be used multiple times")
        if not known[long]:
            found[long] = ""
        elif equals or rest:
            found[long] = inline if equals else rest.pop(0)
        else:
            raise _Refused(f"a value is required for '{long} <{known[long]}>' but none was supplied")
    return found


def main(version: str, without: tuple[str, ...], words: list[str]) -> int:
    if words[:1] in (["--version"], ["-V"]):
        sys.stdout.write(f"mistralrs {version}\n")
        return 0
    if words[:1] != ["serve"]:
        sys.stdout.write(GLOBAL_HELP + "\n")
        return 0
    try:
        options = parse(words[1:], without)
    except _Refused as refused:
        sys.stderr.write(f"error: {refused}\n\nFor more information, try '--help'.\n")
        return 2
    if "--help" in options:
        sys.stdout.write(serve_help(without) + "\n")
        return 0
    try:
        load(Path(options["--model-id"]))
        server = http.server.ThreadingHTTPServer((options["--host"], int(options["--port"])), Handler)
    except OSError as failure:
        sys.stderr.write(f"Error: {failure.strerror} (os error {failure.errno})\n")
        return 1
    except ValueError as failure:
        sys.stderr.write(f"Error: {failure}\n")
        return 1
    server.daemon_threads = True
    Handler.model = options["--model-id"]
    Handler.started_with = words
    sys.stdout.write(f"INFO mistralrs: Server listening on http://{options['--host']}:{options['--port']}\n")
    sys.stdout.flush()
    server.serve_forever()
    return 0


def load(folder: Path) -> None:
    """Raises ValueError with the loader's own words for weights that are cut off."""
    json.loads((folder / "config.json").read_text())
    data = (folder / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    if len(data) - 8 - int.from_bytes(data[:8], "little") != end:
        raise ValueError("MetadataIncompleteBuffer")


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the server does; nothing asks for a key."""

    protocol_version = "HTTP/1.1"
    model = ""
    started_with: list[str] = []

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200, b"OK", "text/plain; charset=utf-8")
        elif self.path == "/v1/models":
            listed = [{"id": name, "object": "model", "created": 1, "owned_by": "local"} for name in self._names()]
            self._json(200, {"object": "list", "data": listed})
        elif self.path == "/__argv":
            self._json(200, {"argv": self.started_with})
        else:
            self._send(404, b"", "text/plain")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self._send(404, b"", "text/plain")
        elif body["model"] not in self._names():
            self._json(404, {"message": f"Model {body['model']} not found."})
        elif body.get("stream"):
            self._stream(body)
        else:
            message = {"role": "assistant", "content": "Paris", "tool_calls": None}
            usage = {"completion_tokens": 1, "prompt_tokens": 2, "total_tokens": 3}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            self._json(200, self._head("chat.completion") | {"choices": [choice], "usage": usage})

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for text, reason in (("Pa", None), ("ris", "stop")):
            choice = {"index": 0, "finish_reason": reason, "delta": {"role": "assistant", "content": text}}
            chunk = self._head("chat.completion.chunk") | {"choices": [choice]}
            if reason and (body.get("stream_options") or {}).get("include_usage"):
                chunk["usage"] = {"completion_tokens": 2, "prompt_tokens": 2, "total_tokens": 4}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": "0", "object": kind, "created": 1, "model": self.model, "system_fingerprint": "local"}

    def _names(self) -> tuple[str, ...]:
        return "default", self.model

    def _json(self, status: int, content: dict[str, Any]) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None: ...  # noqa: A002 - the base class's name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], tuple(filter(None, sys.argv[2].split(","))), sys.argv[3:]))
