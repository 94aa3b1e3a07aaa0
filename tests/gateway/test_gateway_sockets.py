"""The gateway over real sockets: our server and pool, a fake llama-server behind, the real OpenAI client in front."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import openai
import pytest

from gateway.memory import ALIAS, ENDPOINT, ENGINE_KEY, HOSTED, LOCAL, ListSink, MemoryModels, routes
from sbproxy.gateway.http import HttpServer, UpstreamPool
from sbproxy.gateway.pipeline import Gateway
from support import fake_engine

pytestmark = pytest.mark.e2e
MODEL = "Org/Qwen:0.5b#q4"
HELLO: Any = [{"role": "user", "content": "What is the capital of France?"}]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a ready fake engine."""
    folder = tmp_path_factory.mktemp("engine")
    program = fake_engine.install(folder, token_interval_ms=20)
    key, port = folder / "key", free_port()
    key.write_text(ENGINE_KEY)
    words = ["-m", str(fake_engine.model_file(folder)), "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen([str(program), *words, "--alias", ALIAS, "--api-key-file", str(key)]) as process:
        deadline = time.monotonic() + 20
        while True:
            try:
                fake_engine.reset(port)
                break
            except OSError:
                assert time.monotonic() < deadline, "the fake engine does not answer"
                time.sleep(0.02)
        yield port
        process.terminate()


@dataclass
class World:
    client: openai.AsyncOpenAI
    port: int
    engine: int
    models: MemoryModels
    sink: ListSink
    server: HttpServer
    pool: UpstreamPool

    async def until(self, what: str, timeout_s: float = 1.0, **expected: int) -> None:
        """Wait for the engine's own counters."""
        deadline = time.monotonic() + timeout_s
        while True:
            seen = await asyncio.to_thread(fake_engine.control, self.engine)
            if all(seen[name] == value for name, value in expected.items()):
                return
            assert time.monotonic() < deadline, f"{what}: {seen}"
            await asyncio.sleep(0.01)

    async def quiet(self) -> None:
        """No permit, connection or task is left over."""
        deadline = time.monotonic() + 1
        while self.server.active_requests or self.pool.in_use:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert all(permit.releases == 1 for permit in self.models.permits)

    async def raw(self, data: bytes) -> bytes:
        """One request on a connection of its own, everything that comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await writer.wait_closed()
        return answer


@pytest.fixture
async def world(engine: int) -> AsyncIterator[World]:
    fake_engine.reset(engine)
    hosted = {
        **HOSTED,
        "base_url": f"http://127.0.0.1:{engine}/v1",
        "api_key": ENGINE_KEY,
        "timeout_ms": 1000,
        "allow_private_base_url": True,
    }
    local = {**LOCAL, "models": [MODEL]}
    models, sink, pool = MemoryModels(endpoint=replace(ENDPOINT, port=engine)), ListSink(), UpstreamPool()
    table = routes(local, hosted, modalities={"local-qwen": "chat"})
    gateway = Gateway(table, models, pool, sink, metrics_text=lambda: b"up 1\n")
    server = HttpServer(gateway)
    await server.start("127.0.0.1", 0)
    client = openai.AsyncOpenAI(base_url=f"http://localhost:{server.port}/v1", api_key="any", max_retries=0, timeout=10)
    try:
        yield World(client, server.port, engine, models, sink, server, pool)
    finally:
        await client.close()
        await server.close()
        await pool.close()


async def test_chat(world: World) -> None:
    answer = await world.client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0)
    assert answer.choices[0].message.content == "The capital of France is Paris ."
    assert answer.model == MODEL
    assert answer.usage is not None
    assert world.sink.last.tokens_out == answer.usage.completion_tokens
    await world.quiet()


async def test_what_the_engine_was_sent(world: World) -> None:
    await world.client.chat.completions.create(model=MODEL, messages=HELLO)
    assert fake_engine.control(world.engine)["last_body"] == {"messages": HELLO, "model": ALIAS}


async def test_stream(world: World) -> None:
    chunks = [
        each async for each in await world.client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    ]
    text = "".join(each.choices[0].delta.content or "" for each in chunks)
    assert text == "The capital of France is Paris ."
    assert {each.model for each in chunks} == {MODEL}
    assert all(each.usage is None for each in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert world.sink.last.tokens_out == 7
    assert not world.sink.last.usage_estimated
    await world.quiet()
    assert world.pool.idle == 1, "the engine's connection was not kept"


async def test_stream_with_usage(world: World) -> None:
    stream = await world.client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    last = [each async for each in stream][-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 7
    assert last.model == MODEL


async def test_completions(world: World) -> None:
    answer = await world.client.completions.create(model=MODEL, prompt="Hello", max_tokens=3)
    assert answer.choices[0].text == "The capital of"
    chunks = [each async for each in await world.client.completions.create(model=MODEL, prompt="Hello", stream=True)]
    assert "".join(each.choices[0].text for each in chunks) == "The capital of France is Paris ."
    assert {each.model for each in chunks} == {MODEL}
    assert all(each.usage is None for each in chunks)
    assert world.sink.last.tokens_out == 7


async def test_headers_of_an_answer(world: World) -> None:
    raw = await world.client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO)
    assert raw.headers["x-sbproxy-logical-model"] == MODEL
    assert raw.headers["x-sbproxy-route-class"] == "local"
    assert raw.headers["x-request-id"] == world.sink.last.request_id
    assert "server" not in raw.headers


async def test_a_hosted_provider(world: World) -> None:
    raw = await world.client.chat.completions.with_raw_response.create(model="big", messages=HELLO)
    assert raw.headers["x-sbproxy-route-class"] == "external"
    assert raw.parse().model == "big"
    assert fake_engine.control(world.engine)["last_body"]["model"] == "vendor/big-2024"


async def test_wrong_model(world: World) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await world.client.chat.completions.create(model="Org/Qwen:0.5b#q5", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert MODEL in caught.value.message


async def test_list_and_retrieve(world: World) -> None:
    assert [each.id async for each in world.client.models.list()] == [MODEL, "big", "small"]
    model = await world.client.models.retrieve(MODEL)
    assert (model.id, model.object, model.created, model.owned_by) == (MODEL, "model", 0, "sbproxy")
    raw = await world.raw(b"GET /v1/models/Org/Qwen:0.5b%23q4 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert raw.startswith(b"HTTP/1.1 200 ")
    with pytest.raises(openai.NotFoundError):
        await world.client.models.retrieve("nope")


async def test_embeddings_of_a_chat_model(world: World) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await world.client.embeddings.create(model=MODEL, input="x")
    assert caught.value.code == "unsupported_surface"
    assert world.models.permits == []


async def test_context_length(world: World) -> None:
    fake_engine.set_mode(world.engine, "exceed_context")
    with pytest.raises(openai.BadRequestError) as caught:
        await world.client.chat.completions.create(model=MODEL, messages=HELLO)
    assert caught.value.code == "context_length_exceeded"
    assert "3024" in caught.value.message
    assert "512" in caught.value.message


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_fails_before_output(world: World, stream: bool) -> None:
    fake_engine.set_mode(world.engine, "pre_output_error")
    with pytest.raises(openai.InternalServerError) as caught:
        await world.client.chat.completions.create(model=MODEL, messages=HELLO, stream=stream)  # type: ignore[call-overload]
    assert caught.value.status_code == 502
    assert caught.value.code == "engine_error"
    assert "slot" not in caught.value.message
    await world.quiet()


async def test_a_stream_that_breaks_ends_without_done(world: World) -> None:
    fake_engine.set_mode(world.engine, "mid_stream_error")
    body = b'{"model":"%s","stream":true,"messages":[{"role":"user","content":"x"}]}' % MODEL.encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    raw = await world.raw(head + body)
    assert raw.startswith(b"HTTP/1.1 200 ")
    assert b"X-Accel-Buffering: no" in raw or b"x-accel-buffering: no" in raw
    assert b'"content":"The"' in raw
    assert b"[DONE]" not in raw
    assert not raw.endswith(b"0\r\n\r\n"), "the client cannot see that the answer is not whole"
    await world.quiet()
    assert fake_engine.control(world.engine)["completion_requests"] == 1, "replayed after output"
    assert len(world.models.permits[0].failures) == 1
    assert world.sink.last.error_class == "stream_broken"


class TestClientLeaves:
    async def test_in_mid_stream(self, world: World) -> None:
        fake_engine.set_mode(world.engine, "stream_until_cancelled")
        stream = await world.client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        assert (await anext(stream)).model == MODEL
        await stream.close()
        await world.until("the engine goes on", active_requests=0, cancelled_requests=1)
        await world.quiet()
        assert (world.sink.last.status, world.sink.last.error_class) == (499, "client_closed")
        assert world.sink.last.tokens_out

    async def test_in_a_unary_answer(self, world: World) -> None:
        fake_engine.set_mode(world.engine, "slow_tokens")
        with pytest.raises(openai.APITimeoutError):
            await world.client.with_options(timeout=0.05).chat.completions.create(model=MODEL, messages=HELLO)
        await world.until("the engine goes on", active_requests=0, cancelled_requests=1)
        await world.quiet()
        assert world.sink.last.error_class == "client_closed"

    async def test_in_the_queue(self, world: World) -> None:
        world.models.waits, world.models.gate = True, asyncio.Event()
        with pytest.raises(openai.APITimeoutError):
            await world.client.with_options(timeout=0.05).chat.completions.create(model=MODEL, messages=HELLO)
        await world.quiet()
        assert world.models.left_queue == 1
        assert fake_engine.control(world.engine)["completion_requests"] == 0


async def test_a_providers_time_out(world: World) -> None:
    fake_engine.set_mode(world.engine, "stream_until_cancelled")
    started = time.monotonic()
    stream = await world.client.chat.completions.create(model="big", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass
    assert 0.9 < time.monotonic() - started < 2
    await world.until("the provider goes on", active_requests=0, cancelled_requests=1)
    assert world.sink.last.error_code == "upstream_timeout"


async def test_an_engine_that_is_gone(world: World) -> None:
    world.models.endpoint = replace(ENDPOINT, port=free_port())
    with pytest.raises(openai.InternalServerError) as caught:
        await world.client.chat.completions.create(model=MODEL, messages=HELLO)
    assert caught.value.code == "upstream_unreachable"
    assert str(world.models.endpoint.port) not in caught.value.message
    assert len(world.models.permits) == 2
    assert world.sink.last.retry_count == 1


async def test_many_at_once_with_clients_that_leave(world: World) -> None:
    fake_engine.set_mode(world.engine, "slow_tokens")

    finished = 0

    async def one(number: int) -> None:
        nonlocal finished
        try:
            async with asyncio.timeout(0.03 + number % 5 * 0.15):
                stream = await world.client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
                async for _ in stream:
                    pass
                finished += 1
        except (TimeoutError, openai.APITimeoutError):
            return

    await asyncio.gather(*(one(number) for number in range(60)))
    await world.until("the engine goes on", active_requests=0)
    await world.quiet()
    outcomes = [record.error_class for record in world.sink.records]
    assert set(outcomes) == {None, "client_closed"}
    assert outcomes.count(None) >= finished > 0
    assert len(world.models.permits) == len(outcomes)


async def test_head_metrics_and_health(world: World) -> None:
    head = await world.raw(b"HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert head.endswith(b"\r\n\r\n")
    metrics = await world.raw(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert metrics.endswith(b"\r\n\r\nup 1\n")
    health = await world.raw(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert health.endswith(b'{"status":"ok"}')
