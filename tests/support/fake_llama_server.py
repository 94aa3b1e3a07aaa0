"""A stand-in that speaks llama-server's command line and HTTP protocol, without a model.

Started by the wrapper script that :mod:`support.fake_engine` installs; standard library only, so that it is up in
a few dozen milliseconds. What it says on the wire was copied from observing llama-server b10434, field by field.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 2
TEXT = "The capital of France is Paris ."

# (aliases, takes a value, only in these builds)
FLAGS: list[tuple[str, bool, tuple[str, ...]]] = [
    ("-h, --help, --usage", False, ()),
    ("--version", False, ()),
    ("-m, --model", True, ()),
    ("-a, --alias", True, ()),
    ("--host", True, ()),
    ("--port", True, ()),
    ("--api-key-file", True, ()),
    ("-c, --ctx-size", True, ()),
    ("-np, --parallel", True, ()),
    ("-t, --threads", True, ()),
    ("-tb, --threads-batch", True, ()),
    ("-b, --batch-size", True, ()),
    ("-ub, --ubatch-size", True, ()),
    ("-fa, --flash-attn", True, ()),
    ("-ctk, --cache-type-k", True, ()),
    ("-ctv, --cache-type-v", True, ()),
    ("-ngl, --gpu-layers, --n-gpu-layers", True, ()),
    ("-dev, --device", True, ()),
    ("-fit, --fit", True, ()),
    ("-cram, --cache-ram", True, ()),
    ("-kvu, --kv-unified, -no-kvu, --no-kv-unified", False, ()),
    ("--cache-reuse", True, ()),
    ("--cache-prompt, --no-cache-prompt", False, ()),
    ("--context-shift, --no-context-shift", False, ()),
    ("--warmup, --no-warmup", False, ()),
    ("--check-tensors", False, ()),
    ("--numa", True, ()),
    ("--mlock", False, ("b10434",)),
    ("--mmap, --no-mmap", False, ("b10434",)),
    ("-lm, --load-mode", True, ()),
    ("--offline", False, ()),
    ("--metrics", False, ()),
    ("--props", False, ()),
    ("--slots, --no-slots", False, ()),
    ("--ui, --webui, --no-ui, --no-webui", False, ("b10434",)),
    ("--ui, --no-ui", False, ("b11434",)),
    ("--mmproj-auto, --no-mmproj, --no-mmproj-auto", False, ()),
    ("--log-jsonl", False, ("b11434",)),
    ("--cors-origins", True, ()),
    ("--sse-ping-interval", True, ()),
    ("-to, --timeout", True, ()),
    ("--embedding, --embeddings", False, ()),
    ("--rerank, --reranking", False, ()),
    ("--pooling", True, ()),
    ("--jinja, --no-jinja", False, ()),
    ("--reasoning-format", True, ()),
    ("--rope-scaling", True, ()),
    ("--seed", True, ()),
]

# mode: (text on stderr, exit status); signals are negative
FATAL: dict[str, tuple[str, int]] = {
    "crash_on_start": ("terminate called after throwing an instance of 'std::runtime_error'", -signal.SIGABRT),
    "oom_exit": (
        """ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 9663676416
llama_model_load: error loading model: unable to allocate CPU buffer
main: exiting due to model loading error""",
        1,
    ),
    "bad_file": (
        """llama_model_load: error loading model: tensor 'blk.0.attn_q.weight' data is not within the file bounds, \
model is corrupted or incomplete
main: exiting due to model loading error""",
        1,
    ),
    "port_taken": ("srv    start: couldn't bind HTTP server socket, hostname: 127.0.0.1\nmain: exiting", 1),
}


def known_flags(build: str, without: list[str]) -> list[tuple[list[str], bool]]:
    """(aliases, takes a value) of one build, less what the test took away."""
    rows = []
    for aliases, takes, builds in FLAGS:
        names = [name for name in aliases.split(", ") if name not in without]
        if names and (not builds or build in builds):
            rows.append((names, takes))
    return rows


def print_help(build: str, without: list[str]) -> None:
    sys.stdout.write("----- common params -----\n\n")
    for names, takes in known_flags(build, without):
        left = f"{names[0] + ',':<6} {', '.join(names[1:])}" if len(names) > 1 else names[0]
        sys.stdout.write(f"{left + (' N' if takes else ''):<39} what it does\n")
        sys.stdout.write(f"{'':<40}(env: LLAMA_ARG_{names[-1].strip('-').upper().replace('-', '_')})\n")


def parse(argv: list[str], build: str, without: list[str]) -> dict[str, str]:
    """Options by their first long name; exits as llama-server does on one it does not know."""
    rows = {name: (names, takes) for names, takes in known_flags(build, without) for name in names}
    values: dict[str, str] = {}
    rest = list(argv)
    while rest:
        name = rest.pop(0)
        if name not in rows:
            sys.stderr.write(f"error: invalid argument: {name}\n")
            raise SystemExit(1)
        names, takes = rows[name]
        if takes and not rest:
            sys.stderr.write(f'error while handling argument "{name}": expected value for argument\n')
            raise SystemExit(1)
        key = name if name.startswith("--no-") else next(each for each in names if each.startswith("--"))
        values[key] = rest.pop(0) if takes else ""
    return values


def error(status: int, message: str, kind: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"code": status, "message": message, "type": kind}}


class Engine:
    """The state that all connections share."""

    def __init__(self, options: dict[str, str], home: Path, build: str) -> None:
        settings = json.loads((home / "settings.json").read_text())
        self.settings: dict[str, Any] = settings
        self.options = options
        self.home = home
        self.build = build
        self.alias = options.get("--alias") or options["--model"]
        key_file = options.get("--api-key-file")
        self.key = Path(key_file).read_text().strip() if key_file else None
        self.reset()
        self.mode: str = settings["mode"]

    def reset(self) -> None:
        self.mode = "normal"
        self.probes = 0
        self.active = 0
        self.started = 0
        self.completed = 0
        self.cancelled = 0
        self.last_body: Any = None

    @property
    def ready(self) -> bool:
        return self.probes > int(self.settings["ready_after_probes"])

    def control(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "ready_probes": self.probes,
            "active_requests": self.active,
            "completion_requests": self.started,
            "completed_requests": self.completed,
            "cancelled_requests": self.cancelled,
            "last_body": self.last_body,
        }

    def write_instance(self) -> None:
        """Lets a test that only knows the installation folder find this process."""
        instance = {
            "pid": os.getpid(),
            "port": int(self.options["--port"]),
            "argv": sys.argv,
            "environ": dict(os.environ),
        }
        path = self.home / "instances" / f"{os.getpid()}.json"
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(instance))
        partial.replace(path)


class Connection(asyncio.Protocol):
    """One client connection, HTTP/1.1 with keep-alive. A lost connection cancels what runs for it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.buffer = b""
        self.task: asyncio.Task[None] | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.task is None:
            self.next_request()

    def next_request(self) -> None:
        head, separator, rest = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body, rest_or_none = dechunk(rest)
        else:
            length = int(headers.get("content-length", "0"))
            body, rest_or_none = (rest[:length], rest[length:]) if len(rest) >= length else (b"", None)
        if rest_or_none is None:
            if headers.get("expect", "").lower() == "100-continue" and not rest:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        self.buffer = rest_or_none
        self.task = asyncio.get_running_loop().create_task(self.serve(method, target, headers, body))

    async def serve(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        await self.answer(method, target.partition("?")[0], headers, body)
        self.task = None
        if headers.get("connection", "").lower() == "close":
            self.transport.close()
        elif not self.transport.is_closing():
            self.next_request()

    async def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        engine = self.engine
        if path.startswith("/__control"):
            return self.send(*self.control(method, path))
        if path == "/health":
            engine.probes += 1
            return self.send(200, {"status": "ok"}) if engine.ready else self.send(*LOADING)
        if not engine.ready:
            return self.send(*LOADING)
        if path in ("/v1/models", "/models"):
            return self.send(200, self.models())
        if engine.key is not None and headers.get("authorization") != f"Bearer {engine.key}":
            return self.send(*error(401, "Invalid API Key", "authentication_error"))
        if path == "/slots":
            slots = int(engine.options.get("--parallel", "1"))
            return self.send(200, [{"id": n, "is_processing": n < engine.active} for n in range(slots)])
        if path == "/metrics":
            return self.send_text(f"llamacpp:requests_processing {engine.active}\n")
        if path in ("/v1/chat/completions", "/v1/completions"):
            return await self.complete(body, chat="chat" in path)
        if path == "/v1/embeddings":
            return self.send(*self.embed(body))
        return self.send(*error(404, "File Not Found", "not_found_error"))

    def control(self, method: str, path: str) -> tuple[int, Any]:
        engine = self.engine
        if method == "POST" and path == "/__control/reset":
            engine.reset()
            engine.probes = 1_000_000
        elif method == "POST" and path.startswith("/__control/mode/"):
            engine.mode = path.rpartition("/")[2]
        elif method != "GET" or path != "/__control":
            return error(404, "File Not Found", "not_found_error")
        return 200, engine.control()

    def models(self) -> dict[str, Any]:
        alias = self.engine.alias
        entry = {
            "id": alias,
            "aliases": [alias],
            "object": "model",
            "created": int(time.time()),
            "owned_by": "llamacpp",
        }
        return {"models": [{"name": alias, "model": alias, "type": "model"}], "object": "list", "data": [entry]}

    def embed(self, body: bytes) -> tuple[int, Any]:
        if "--embedding" not in self.engine.options:
            message = "This server does not support embeddings. Start it with `--embeddings`"
            return error(501, message, "not_supported_error")
        given = json.loads(body)["input"]
        inputs = given if isinstance(given, list) else [given]
        rows = [{"object": "embedding", "index": n, "embedding": [0.6, 0.8, 0.0]} for n in range(len(inputs))]
        usage = {"prompt_tokens": PROMPT_TOKENS * len(inputs), "total_tokens": PROMPT_TOKENS * len(inputs)}
        return 200, {"object": "list", "model": self.engine.alias, "data": rows, "usage": usage}

    async def complete(self, body: bytes, *, chat: bool) -> None:
        engine = self.engine
        try:
            request = json.loads(body)
        except ValueError as wrong:
            text = f"[json.exception.parse_error.101] {wrong}; last read: '{body[-40:].decode('latin-1')}'"
            self.send(*error(500, text, "server_error"))
            return
        engine.last_body = request
        if chat and "messages" not in request:
            self.send(*error(400, "'messages' is required", "invalid_request_error"))
            return
        engine.started += 1
        engine.active += 1
        try:
            await self.generate(request, chat)
            engine.completed += 1
        except asyncio.CancelledError:
            engine.cancelled += 1
            raise
        finally:
            engine.active -= 1
        limit = engine.settings["crash_after"] if engine.mode == "crash_after_n" else None
        if limit is not None and engine.completed >= int(limit):
            os.kill(os.getpid(), signal.SIGKILL)

    async def generate(self, request: dict[str, Any], chat: bool) -> None:
        engine = self.engine
        mode, settings = engine.mode, engine.settings
        if mode == "pre_output_error":
            return self.send(*error(503, "slot unavailable", "unavailable_error"))
        if mode == "exceed_context":
            status, answer = error(400, "the request exceeds the available context size", "exceed_context_size_error")
            answer["error"] |= {"n_prompt_tokens": 3024, "n_ctx": 512}
            return self.send(status, answer)
        if mode == "delayed_headers":
            await asyncio.sleep(settings["header_delay_ms"] / 1000)
        streaming = bool(request.get("stream"))
        if mode in ("sse", "mid_stream_error", "stream_until_cancelled"):
            streaming = True
        elif mode == "unary":
            streaming = False
        words = (settings["text"] or TEXT).split(" ")
        limit = request.get("max_completion_tokens") or request.get("max_tokens")
        finish = "stop"
        if isinstance(limit, int) and 0 < limit < len(words):
            words, finish = words[:limit], "length"
        interval = settings["token_interval_ms"] / 1000 if mode in ("slow_tokens", "stream_until_cancelled") else 0.0
        if streaming:
            return await self.stream(request, chat, words, finish, interval)
        await asyncio.sleep(interval * len(words))
        return self.send(200, self.unary(chat, " ".join(words), finish, len(words)))

    def unary(self, chat: bool, text: str, finish: str, tokens: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"finish_reason": finish, "index": 0}
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice |= {"text": text, "logprobs": None}
        kind = "chat.completion" if chat else "text_completion"
        return {"choices": [choice], **self.frame(kind), "usage": usage(tokens), "timings": {"predicted_n": tokens}}

    def frame(self, kind: str) -> dict[str, Any]:
        engine = self.engine
        return {
            "created": int(time.time()),
            "id": f"chatcmpl-{engine.started:032d}",
            "model": engine.alias,
            "system_fingerprint": f"{engine.build}-fake",
            "object": kind,
        }

    async def stream(self, request: dict[str, Any], chat: bool, words: list[str], finish: str, interval: float) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        frame = self.frame(kind)
        self.start_stream()
        if chat:
            self.event({"choices": [delta({"role": "assistant", "content": None})], **frame})
        endless = self.engine.mode == "stream_until_cancelled"
        sent = 0
        while endless or sent < len(words):
            text = ("" if sent == 0 else " ") + words[sent % len(words)]
            choice = delta({"content": text}) if chat else {"text": text, "index": 0, "logprobs": None}
            self.event({"choices": [choice], **frame})
            sent += 1
            if self.engine.mode == "mid_stream_error":
                self.transport.close()
                return
            await asyncio.sleep(interval)
            await self.writable.wait()
        last: dict[str, Any] = delta({}) if chat else {"text": "", "index": 0, "logprobs": None}
        last["finish_reason"] = finish
        asked = (request.get("stream_options") or {}).get("include_usage")
        if not chat:
            self.event({"choices": [last], **frame, "usage": usage(sent)})
        else:
            self.event({"choices": [last], **frame})
            if asked:
                self.event({"choices": [], **frame, "usage": usage(sent)})
        self.chunk(b"data: [DONE]\n\n")
        self.transport.write(b"0\r\n\r\n")

    def start_stream(self) -> None:
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

    def event(self, data: dict[str, Any]) -> None:
        self.chunk(b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.transport.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def send(self, status: int, body: Any) -> None:
        self.send_bytes(status, "application/json; charset=utf-8", json.dumps(body).encode())

    def send_text(self, body: str) -> None:
        self.send_bytes(200, "text/plain; version=0.0.4", body.encode())

    def send_bytes(self, status: int, kind: str, data: bytes) -> None:
        head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\nServer: llama.cpp\r\n"
        head += f"Content-Type: {kind}\r\nContent-Length: {len(data)}\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
        self.transport.write(head.encode() + data)


LOADING = error(503, "Loading model", "unavailable_error")


def usage(tokens: int) -> dict[str, Any]:
    return {"completion_tokens": tokens, "prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + tokens}


def delta(content: dict[str, Any]) -> dict[str, Any]:
    return {"finish_reason": None, "index": 0, "delta": content}


def dechunk(data: bytes) -> tuple[bytes, bytes | None]:
    """(body, what follows); None while the body is not complete."""
    body = b""
    while True:
        size, separator, data = data.partition(b"\r\n")
        if not separator:
            return b"", None
        length = int(size.partition(b";")[0], 16)
        if len(data) < length + 2:
            return b"", None
        body, data = body + data[:length], data[length + 2 :]
        if length == 0:
            return body, data


def die(mode: str) -> None:
    text, status = FATAL[mode]
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    if status < 0:
        os.kill(os.getpid(), -status)
    raise SystemExit(status)


def check_model(path: str) -> None:
    """llama.cpp's words for a missing file and for one that is no GGUF."""
    reason = None
    if not Path(path).is_file():
        reason = f"gguf_init_from_file: failed to open GGUF file '{path}' (No such file or directory)"
    elif Path(path).read_bytes()[:4] != b"GGUF":
        reason = "gguf_init_from_file_impl: invalid magic characters: 'oops', expected 'GGUF'"
    if reason is not None:
        sys.stderr.write(f"{reason}\nllama_model_load: error loading model: failed to load model from {path}\n")
        sys.stderr.write("main: exiting due to model loading error\n")
        raise SystemExit(1)


async def listen(engine: Engine) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if engine.settings["ignore_term"] else stop.set)
    host, port = engine.options.get("--host", "127.0.0.1"), int(engine.options.get("--port", "8080"))
    try:
        server = await loop.create_server(lambda: Connection(engine), host, port)
    except OSError:
        die("port_taken")
        return
    sys.stderr.write(f"main: server is listening on http://{host}:{port}\n")
    sys.stderr.flush()
    engine.write_instance()
    async with server:
        await stop.wait()
        server.close()


def main(arguments: list[str]) -> None:
    home, build, without = Path(arguments[0]), arguments[1], [name for name in arguments[2].split(",") if name]
    argv = arguments[3:]
    if "--version" in argv:
        sys.stderr.write(f"version: {build.removeprefix('b')} (fa4e0000)\nbuilt with cc for Linux x86_64\n")
        return
    if {"--help", "-h"} & set(argv):
        print_help(build, without)
        return
    options = parse(argv, build, without)
    engine = Engine(options, home, build)
    if engine.mode in FATAL:
        die(engine.mode)
    check_model(options.get("--model", ""))
    asyncio.run(listen(engine))


if __name__ == "__main__":
    main(sys.argv[1:])
