"""What an engine's refusal becomes, over real sockets: the caller's 400, once, without the engine's words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import openai
import orjson
import pytest

from gateway.memory import ENDPOINT, LOCAL, ListSink, MemoryModels, routes
from sbproxy.gateway.http import HttpServer, UpstreamPool
from sbproxy.gateway.pipeline import Gateway
from support.raw_server import RawServer, answer, raw_server

pytestmark = pytest.mark.e2e
HELLO: Any = [{"role": "user", "content": "zebra-prompt"}]

RAISED = """Automatic parser generation failed:
------------
While executing CallExpression at line 3, column 83 in source:
...p.index0 % 2 == 0) -%}{{ raise_exception("zebra-template turns must alter...
Error: Jinja Exception: zebra-template turns must alternate"""
REFUSALS = [
    # llama-server b10434, a template that raises; and how other builds word it.
    ("400 Bad Request", f"Unable to generate parser for this template. {RAISED}"),
    (
        "500 Internal Server Error",
        'zebra-template turns must alternate at row 1, column 257:\n{{ raise_exception("zebra") }}',
    ),
    ("500 Internal Server Error", "Error: Jinja Exception: zebra-template turns must alternate"),
    ("500 Internal Server Error", "failed to apply the chat template: zebra-template"),
    # The same build on messages and tools that it cannot read.
    (
        "500 Internal Server Error",
        "Failed to parse messages: [json.exception.type_error.302] type must be string: zebra",
    ),
    ("500 Internal Server Error", 'Failed to parse tools: type must be string; tools = [ {"name": "zebra-tool"} ]'),
    ("500 Internal Server Error", "Unknown reasoning format: zebra"),
]
FAULTS = ["zebra: failed to decode the batch, res = -3", "zebra", ""]


@dataclass
class Front:
    client: openai.AsyncOpenAI
    models: MemoryModels
    sink: ListSink
    engine: RawServer

    async def refusal(self, *, stream: bool) -> openai.APIStatusError:
        with pytest.raises(openai.APIStatusError) as caught:
            await self.client.chat.completions.create(model="qwen", messages=HELLO, stream=stream)
        return caught.value


@asynccontextmanager
async def front(status: str, message: str) -> AsyncIterator[Front]:
    """A gateway whose engine answers every request with one error."""
    kind = "invalid_request_error" if status.startswith("400") else "server_error"
    error = {"error": {"code": int(status[:3]), "message": message, "type": kind}}

    async def respond(number: int, head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(status, orjson.dumps(error), "content-type: application/json; charset=utf-8"))

    async with raw_server(respond) as engine:
        models, sink, pool = MemoryModels(endpoint=replace(ENDPOINT, port=engine.port)), ListSink(), UpstreamPool()
        server = HttpServer(Gateway(routes(LOCAL), models, pool, sink, metrics_text=lambda: b""))
        await server.start("127.0.0.1", 0)
        try:
            base = f"http://localhost:{server.port}/v1"
            async with openai.AsyncOpenAI(base_url=base, api_key="any", max_retries=0, timeout=10) as client:
                yield Front(client, models, sink, engine)
        finally:
            await server.close()
            await pool.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "message"), REFUSALS)
async def test_a_refused_request_is_the_callers(status: str, message: str, stream: bool) -> None:
    async with front(status, message) as world:
        error = await world.refusal(stream=stream)
        assert (error.status_code, error.code, error.type) == (400, "invalid_request", "invalid_request_error")
        assert_once_and_in_our_words(world, error)
        assert world.sink.last.error_class == "invalid_request"


@pytest.mark.parametrize("message", FAULTS)
async def test_a_fault_stays_the_engines(message: str) -> None:
    async with front("500 Internal Server Error", message) as world:
        error = await world.refusal(stream=False)
        assert (error.status_code, error.code) == (502, "engine_error")
        assert_once_and_in_our_words(world, error)


def assert_once_and_in_our_words(world: Front, error: openai.APIStatusError) -> None:
    assert "zebra" not in error.response.text
    assert "template" not in error.response.text
    assert len(world.engine.heads) == 1, "it was tried again"
    assert [permit.failures for permit in world.models.permits] == [[]], "it was held against the engine"
    assert [permit.releases for permit in world.models.permits] == [1]
    assert world.sink.last.retry_count == 0


async def test_what_is_refused_before_dispatch_takes_no_permit() -> None:
    async with front("500 Internal Server Error", "zebra") as world:
        with pytest.raises(openai.BadRequestError) as caught:
            await world.client.chat.completions.create(
                model="qwen",
                messages=[
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}],
                    }
                ],
            )
        assert (caught.value.code, caught.value.param) == ("unsupported_content", "messages[0].content[0].type")
        with pytest.raises(openai.BadRequestError) as caught:
            await world.client.chat.completions.create(model="qwen", messages=HELLO, max_tokens=0)
        assert caught.value.param == "max_tokens"
        assert world.models.permits == []
        assert world.engine.heads == []
