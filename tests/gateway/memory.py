"""The gateway's neighbours in memory: exchange, upstream, model host and sink, each keeping what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from sbproxy.config.core.origins import OriginConfig
from sbproxy.engines.core.model import Endpoint
from sbproxy.errors import SbproxyError
from sbproxy.errors.gateway import UpstreamTooLarge
from sbproxy.gateway.core.providers import ModelFacts
from sbproxy.gateway.core.routes import RouteTable, compile_routes
from sbproxy.gateway.exchange import NEVER, HeaderPairs, Request, Upstream, UpstreamResponse
from sbproxy.gateway.key_gate import KeyGate
from sbproxy.gateway.pipeline import Gateway
from sbproxy.modelhost.core.status import Availability, Priority
from sbproxy.observe.core.record import RequestRecord

ALIAS = "m-0a1b2c"
ENGINE_KEY = "engine-key-that-nobody-else-sees"
ENDPOINT = Endpoint("127.0.0.1", 4001, ALIAS, ENGINE_KEY)
COLD = Availability("cold", 0, 1)


class MemoryExchange:
    """Keeps the answer; enforces the protocol's order of calls like the real one."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.bytes_out = 0
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.ending = "open"
        self.writes = 0
        self.stuck: asyncio.Event | None = None
        self.drained = 0

    def respond(self, status: int, headers: HeaderPairs, body: bytes) -> None:
        self.start(status, headers)
        self.body = body
        self.bytes_out += len(body)
        self.ending = "responded"

    def start(self, status: int, headers: HeaderPairs) -> None:
        assert self.ending == "open"
        assert self.status == 0
        self.status, self.headers = status, dict(headers)
        assert len(self.headers) == len(headers), "a header twice"
        assert all(name == name.lower() and b"\n" not in value for name, value in headers)

    def write(self, data: bytes) -> None:
        assert self.status
        assert self.ending == "open"
        assert data
        self.body += data
        self.bytes_out += len(data)
        self.writes += 1

    @property
    def paused(self) -> bool:
        return self.stuck is not None and not self.stuck.is_set()

    async def drain(self) -> None:
        assert self.stuck is not None
        await self.stuck.wait()
        self.drained += 1

    def finish(self) -> None:
        assert self.status
        assert self.ending == "open"
        self.ending = "finished"

    def abort(self) -> None:
        assert self.ending == "open"
        self.ending = "aborted"

    def json(self) -> Any:
        return orjson.loads(self.body)

    def events(self) -> list[Any]:
        """The data of each event; ``[DONE]`` as text."""
        lines = [each.removeprefix(b"data: ") for each in self.body.split(b"\n\n") if each.startswith(b"data: ")]
        return ["[DONE]" if line == b"[DONE]" else orjson.loads(line) for line in lines]


class MemoryResponse:
    """An upstream's answer from a list of pieces; a piece may be an error to raise or an event to wait for."""

    def __init__(
        self,
        body: bytes | Sequence[bytes | SbproxyError | asyncio.Event] = b"",
        *,
        status: int = 200,
        kind: bytes = b"application/json",
        headers: HeaderPairs = (),
    ) -> None:
        self.status = status
        self.headers: HeaderPairs = ((b"content-type", kind), (b"server", b"llama.cpp"), *headers)
        self._pieces = [body] if isinstance(body, bytes) else list(body)
        self.closed = 0
        self.extended = 0.0
        self.exhausted = False

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    async def read(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        while await self.pour(lambda piece: pieces.append(piece) is None):
            pass
        body = b"".join(pieces)
        if len(body) > limit:
            raise UpstreamTooLarge("memory", limit)
        return body

    async def pour(self, into: Callable[[bytes], bool]) -> bool:
        while self._pieces:
            piece = self._pieces.pop(0)
            if isinstance(piece, SbproxyError):
                raise piece
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            elif not into(piece):
                return True
        self.exhausted = True
        return False

    def extend(self, seconds: float) -> None:
        self.extended += seconds

    def close(self) -> None:
        self.closed += 1


@dataclass
class Sent:
    """One request that reached the upstream."""

    upstream: Upstream
    method: str
    path: str
    headers: dict[bytes, bytes]
    body: bytes
    timeout_s: float | None
    until: float

    def json(self) -> Any:
        return orjson.loads(self.body)


Script = MemoryResponse | SbproxyError | asyncio.Event


class MemoryUpstream:
    """Answers from a script, in order; an event in it is a head that does not come until it is set."""

    def __init__(self, *script: Script) -> None:
        self.script = list(script)
        self.sent: list[Sent] = []
        self.cancelled = 0

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
        self.sent.append(Sent(upstream, method, path, dict(headers), body, timeout_s, until))
        await asyncio.sleep(0)
        while True:
            step = self.script.pop(0)
            if isinstance(step, SbproxyError):
                raise step
            if isinstance(step, MemoryResponse):
                return step
            try:
                await step.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise


class MemoryPermit:
    def __init__(self, endpoint: Endpoint, deployment: str) -> None:
        self.endpoint = endpoint
        self.deployment = deployment
        self.generation = 1
        self.releases = 0
        self.failures: list[str] = []

    def release(self) -> None:
        self.releases += 1

    def engine_failed(self, detail: str) -> None:
        assert self.releases == 0
        self.failures.append(detail)


@dataclass
class MemoryModels:
    """``waits``: no permit at once. ``refusal``: what acquire raises. ``gate``: holds acquire until it is set."""

    waits: bool = False
    refusal: SbproxyError | None = None
    gate: asyncio.Event | None = None
    endpoint: Endpoint = ENDPOINT
    permits: list[MemoryPermit] = field(default_factory=list)
    left_queue: int = 0
    priorities: list[str] = field(default_factory=list)
    seen: Availability = COLD

    def try_acquire(self, deployment: str) -> MemoryPermit | None:
        if self.waits or self.refusal is not None:
            return None
        return self._grant(deployment)

    async def acquire(self, deployment: str, priority: Priority) -> MemoryPermit:
        self.priorities.append(priority)
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.left_queue += 1
                raise
        if self.refusal is not None:
            raise self.refusal
        return self._grant(deployment)

    def _grant(self, deployment: str) -> MemoryPermit:
        permit = MemoryPermit(self.endpoint, deployment)
        self.permits.append(permit)
        return permit

    def availability(self, deployment: str) -> Availability:
        return self.seen


class ListSink:
    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)

    @property
    def last(self) -> RequestRecord:
        return self.records[-1]


def origins(**hosts: Any) -> dict[str, OriginConfig]:
    """Origins from plain mappings of their actions; ``__`` in a name is a dot."""
    return {
        host.replace("__", "."): OriginConfig.model_validate({"action": {"type": "ai_proxy", **action}})
        for host, action in hosts.items()
    }


LOCAL = {"name": "local", "provider_type": "managed_model", "deployment": "local-qwen", "models": ["qwen"]}
HOSTED = {
    "name": "hosted",
    "base_url": "https://llm.example.com/v1",
    "api_key": "sk-hosted-secret",
    "models": ["big", "small"],
    "model_map": {"big": "vendor/big-2024"},
}


def routes(
    *providers: dict[str, Any], revision: str = "r1", modalities: dict[str, str] | None = None, **action: Any
) -> RouteTable:
    """One origin on ``localhost``."""
    return compile_routes(
        origins(localhost={"providers": list(providers or (LOCAL, HOSTED)), **action}),
        revision=revision,
        models={name: ModelFacts(modality, 4096) for name, modality in modalities.items()} if modalities else None,
    )


@dataclass
class Rig:
    """A gateway with everything around it in memory."""

    table: RouteTable = field(default_factory=routes)
    upstream: MemoryUpstream = field(default_factory=MemoryUpstream)
    models: MemoryModels = field(default_factory=MemoryModels)
    sink: ListSink = field(default_factory=ListSink)
    metrics: Callable[[], bytes] = lambda: b"sbproxy_up 1\n"
    keys: KeyGate | None = None

    def __post_init__(self) -> None:
        self.now = 100.0
        self.gateway = Gateway(
            self.table,
            self.models,
            self.upstream,
            self.sink,
            metrics_text=self.metrics,
            clock=lambda: self.now,
            wall_clock=lambda: 1_700_000_000.5,
            keys=self.keys,
        )

    async def ask(self, path: str = "/v1/chat/completions", body: Any = None, **how: Any) -> MemoryExchange:
        exchange = self.exchange(path, body, **how)
        await self.gateway(exchange)
        return exchange

    def exchange(
        self,
        path: str = "/v1/chat/completions",
        body: Any = None,
        *,
        method: str | None = None,
        host: str = "localhost",
        headers: HeaderPairs = (),
        query: str = "",
    ) -> MemoryExchange:
        raw = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        verb = method or ("POST" if raw else "GET")
        return MemoryExchange(Request(verb, path, query, host, headers, raw, "192.0.2.7", self.now - 0.25))


def chat(model: str | None = "qwen", **more: Any) -> dict[str, Any]:
    named = {} if model is None else {"model": model}
    return {**named, "messages": [{"role": "user", "content": "Hello?"}], **more}


def completion(model: str = ALIAS, **more: Any) -> bytes:
    return orjson.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
            "system_fingerprint": "b10434",
            "timings": {"predicted_ms": 1.5},
            **more,
        }
    )


def chunk(content: str | None = None, model: str = ALIAS, **more: Any) -> bytes:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}, "finish_reason": None}]
    document = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices, **more}
    return b"data: " + orjson.dumps(document) + b"\n\n"


USAGE = chunk(usage={"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13})
DONE = b"data: [DONE]\n\n"


def stream(*pieces: bytes | SbproxyError | asyncio.Event, **how: Any) -> MemoryResponse:
    return MemoryResponse(list(pieces), kind=b"text/event-stream", **how)
