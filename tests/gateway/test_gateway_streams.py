"""Streams, cancellation, retries and time-outs, with everything around the gateway in memory."""

from __future__ import annotations

import asyncio

import pytest

from gateway.memory import (
    DONE,
    HOSTED,
    USAGE,
    MemoryExchange,
    MemoryModels,
    MemoryResponse,
    MemoryUpstream,
    Rig,
    chat,
    chunk,
    completion,
    routes,
    stream,
)
from sbproxy.errors.engines import EngineLaunchFailed
from sbproxy.errors.gateway import UpstreamBroken, UpstreamTimeout, UpstreamUnreachable

STREAM = chat(stream=True)
BROKEN = UpstreamBroken("127.0.0.1:4001", "connection reset")
GONE = UpstreamUnreachable("127.0.0.1:4001", "connection refused")


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def leave(task: asyncio.Task[None]) -> None:
    """What the server does when the client goes."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class TestStreams:
    async def test_events_come_through_with_the_public_name(self) -> None:
        response = stream(chunk("a"), chunk("b") + chunk("c"), USAGE, DONE, b"")
        rig = Rig(upstream=MemoryUpstream(response))
        exchange = await rig.ask(body=STREAM)
        assert (exchange.status, exchange.ending) == (200, "finished")
        *events, last = exchange.events()
        assert [each["choices"][0]["delta"]["content"] for each in events] == ["a", "b", "c"]
        assert {each["model"] for each in events} == {"qwen"}
        assert last == "[DONE]"
        assert exchange.headers == {
            b"content-type": b"text/event-stream",
            b"cache-control": b"no-cache",
            b"x-accel-buffering": b"no",
            b"x-request-id": rig.sink.last.request_id.encode(),
            b"x-sbproxy-logical-model": b"qwen",
            b"x-sbproxy-route-class": b"local",
        }
        record = rig.sink.last
        assert (record.tokens_in, record.tokens_out, record.usage_estimated) == (11, 2, False)
        assert (record.streamed, record.ttft_ms, record.error_class) == (True, 250.0, None)
        assert response.exhausted, "the rest was not read, so the connection cannot be used again"

    async def test_usage_goes_to_who_asks(self) -> None:
        rig = Rig(upstream=MemoryUpstream(stream(chunk("a"), USAGE, DONE)))
        exchange = await rig.ask(body=chat(stream=True, stream_options={"include_usage": True}))
        assert exchange.events()[1]["usage"]["total_tokens"] == 13
        assert exchange.events()[1]["model"] == "qwen"

    async def test_the_engine_is_asked_for_usage_anyway(self) -> None:
        rig = Rig(upstream=MemoryUpstream(stream(chunk("a"), USAGE, DONE)))
        exchange = await rig.ask(body=STREAM)
        assert rig.upstream.sent[0].json()["stream_options"] == {"include_usage": True}
        assert b"usage" not in exchange.body

    async def test_without_usage_delivered_events_are_counted(self) -> None:
        rig = Rig(upstream=MemoryUpstream(stream(chunk("a"), chunk("b"), DONE)))
        exchange = await rig.ask(body=STREAM)
        record = rig.sink.last
        assert (record.tokens_out, record.usage_estimated) == (2, True)
        assert record.tokens_in == len(exchange.request.body) // 4

    async def test_the_head_waits_for_the_first_event(self) -> None:
        first, rest = asyncio.Event(), asyncio.Event()
        rig = Rig(upstream=MemoryUpstream(stream(b": hello\n\n", first, chunk("a"), rest, DONE)))
        exchange = rig.exchange(body=STREAM)
        task = asyncio.create_task(rig.gateway(exchange))
        await settle()
        assert exchange.status == 0
        first.set()
        await settle()
        assert (exchange.status, exchange.writes) == (200, 1)
        rest.set()
        await task
        assert exchange.ending == "finished"

    async def test_an_error_as_first_event_gets_a_status(self) -> None:
        failure = b'data: {"error":{"code":400,"type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":8}}\n\n'
        rig = Rig(upstream=MemoryUpstream(stream(failure)))
        exchange = await rig.ask(body=STREAM)
        assert exchange.status == 400
        assert exchange.json()["error"]["code"] == "context_length_exceeded"
        assert rig.models.permits[0].releases == 1

    @pytest.mark.parametrize(
        "end",
        [BROKEN, b"", b"data: {half", b'data: {"error":{"message":"slot died at /srv/x"}}\n\n', b"data: nonsense\n\n"],
        ids=["cut", "early end", "half an event", "error event", "nonsense"],
    )
    async def test_a_stream_that_breaks_ends_without_done(self, end: bytes | UpstreamBroken) -> None:
        response = stream(chunk("a"), chunk("b"), end)
        rig = Rig(upstream=MemoryUpstream(response))
        exchange = await rig.ask(body=STREAM)
        assert (exchange.status, exchange.ending) == (200, "aborted")
        assert b"[DONE]" not in exchange.body
        assert b"/srv" not in exchange.body
        assert len(exchange.events()) == 2
        assert len(rig.upstream.sent) == 1, "a request was replayed after output"
        (permit,) = rig.models.permits
        assert permit.releases == 1
        assert response.closed == 1
        record = rig.sink.last
        assert (record.status, record.error_class, record.retry_count) == (200, "stream_broken", 0)
        assert (record.tokens_out, record.usage_estimated) == (2, True)

    async def test_an_endless_event_is_cut(self) -> None:
        rig = Rig(upstream=MemoryUpstream(stream(chunk("a"), *[b"x" * 1_000_000] * 6)))
        exchange = await rig.ask(body=STREAM)
        assert exchange.ending == "aborted"
        assert rig.sink.last.error_code == "upstream_too_large"

    async def test_back_pressure(self) -> None:
        rig = Rig(upstream=MemoryUpstream(stream(chunk("a"), chunk("b"), chunk("c"), DONE)))
        exchange = rig.exchange(body=STREAM)
        exchange.stuck = asyncio.Event()
        task = asyncio.create_task(rig.gateway(exchange))
        await settle()
        assert exchange.writes == 1
        exchange.stuck.set()
        await task
        assert exchange.writes == 4
        assert exchange.drained == 1

    async def test_a_provider_that_holds_the_body_open_after_done_holds_nobody_up(self) -> None:
        response = stream(chunk("a"), DONE, asyncio.Event())
        rig = Rig(upstream=MemoryUpstream(response))
        exchange = await asyncio.wait_for(rig.ask(body=STREAM), 2)
        assert exchange.ending == "finished"
        assert response.closed == 1
        assert rig.sink.last.error_class is None


class TestClientLeaves:
    """At each place where a request can wait: the permit comes back once, the upstream is closed, a record tells."""

    def check(self, rig: Rig, exchange: MemoryExchange) -> None:
        record = rig.sink.last
        assert (record.status, record.error_class) == (499, "client_closed")
        assert len(rig.sink.records) == 1
        assert exchange.ending == "open", "the server closes, not the pipeline"
        assert [permit.releases for permit in rig.models.permits] == [1] * len(rig.models.permits)
        assert [permit.failures for permit in rig.models.permits] == [[]] * len(rig.models.permits)

    async def test_in_the_queue(self) -> None:
        rig = Rig(models=MemoryModels(waits=True, gate=asyncio.Event()))
        exchange = rig.exchange(body=chat())
        task = asyncio.create_task(rig.gateway(exchange))
        await settle()
        rig.now += 2
        await leave(task)
        self.check(rig, exchange)
        assert rig.models.left_queue == 1
        assert rig.upstream.sent == []
        assert rig.sink.last.queued_ms == 2000

    async def test_before_the_first_byte(self) -> None:
        rig = Rig(upstream=MemoryUpstream(asyncio.Event()))
        exchange = rig.exchange(body=STREAM)
        task = asyncio.create_task(rig.gateway(exchange))
        await settle()
        await leave(task)
        self.check(rig, exchange)
        assert rig.upstream.cancelled == 1
        assert len(rig.models.permits) == 1

    async def test_between_head_and_first_event(self) -> None:
        response = stream(asyncio.Event())
        rig = Rig(upstream=MemoryUpstream(response))
        exchange = rig.exchange(body=STREAM)
        task = asyncio.create_task(rig.gateway(exchange))
        await settle()
        await leave(task)
        self.check(rig, exchange)
        assert response.closed == 1

    async def test_in_mid_stream(self) -> None:
        response = stream(chunk("a"), chunk("b"), asyncio.Event(), chunk("c"))
        rig = Rig(upstream=MemoryUpstream(response))
        exchange = rig.exchange(body=STREAM)
        task = asyncio.create_task(rig.gateway(exchange))
        await settle()
        assert exchange.writes == 2
        await leave(task)
        self.check(rig, exchange)
        assert response.closed == 1
        assert (rig.sink.last.tokens_out, rig.sink.last.usage_estimated) == (2, True)

    async def test_while_its_socket_is_full(self) -> None:
        response = stream(chunk("a"), chunk("b"))
        rig = Rig(upstream=MemoryUpstream(response))
        exchange = rig.exchange(body=STREAM)
        exchange.stuck = asyncio.Event()
        task = asyncio.create_task(rig.gateway(exchange))
        await settle()
        await leave(task)
        self.check(rig, exchange)
        assert response.closed == 1

    async def test_in_the_middle_of_a_unary_body(self) -> None:
        response = MemoryResponse([b'{"id":', asyncio.Event()])
        rig = Rig(upstream=MemoryUpstream(response))
        exchange = rig.exchange(body=chat())
        task = asyncio.create_task(rig.gateway(exchange))
        await settle()
        await leave(task)
        self.check(rig, exchange)
        assert response.closed == 1

    async def test_of_a_hosted_provider(self) -> None:
        rig = Rig(upstream=MemoryUpstream(asyncio.Event()))
        exchange = rig.exchange(body=chat("big"))
        task = asyncio.create_task(rig.gateway(exchange))
        await settle()
        await leave(task)
        self.check(rig, exchange)
        assert rig.upstream.cancelled == 1


class TestOneMoreTry:
    @pytest.mark.parametrize("failure", [GONE, BROKEN], ids=["unreachable", "broken"])
    @pytest.mark.parametrize("body", [chat(), STREAM], ids=["unary", "stream"])
    async def test_a_connection_that_fails_before_any_output(
        self, failure: UpstreamUnreachable | UpstreamBroken, body: dict[str, object]
    ) -> None:
        good = stream(chunk("a"), DONE) if body is STREAM else MemoryResponse(completion())
        rig = Rig(upstream=MemoryUpstream(failure, good))
        exchange = await rig.ask(body=body)
        assert exchange.status == 200
        first, second = rig.models.permits
        assert first.failures == [str(failure)]
        assert (first.releases, second.releases, second.failures) == (1, 1, [])
        assert rig.sink.last.retry_count == 1

    async def test_a_body_that_breaks_before_any_output(self) -> None:
        rig = Rig(upstream=MemoryUpstream(stream(b": x\n\n", BROKEN), stream(chunk("a"), DONE)))
        exchange = await rig.ask(body=STREAM)
        assert exchange.ending == "finished"
        assert rig.sink.last.retry_count == 1

    async def test_there_is_one_only(self) -> None:
        rig = Rig(upstream=MemoryUpstream(GONE, GONE, MemoryResponse(completion())))
        exchange = await rig.ask(body=chat())
        assert exchange.status == 502
        assert b"4001" not in exchange.body
        assert len(rig.models.permits) == 2
        assert rig.sink.last.error_class == "upstream_unreachable"

    async def test_an_engine_that_does_not_come_back_says_why(self) -> None:
        rig = Rig(upstream=MemoryUpstream(GONE))
        task = asyncio.create_task(rig.ask(body=chat()))
        await asyncio.sleep(0)
        rig.models.refusal = EngineLaunchFailed("llama_cpp", "crash", "exit 1")
        exchange = await task
        assert exchange.status == 503
        assert exchange.json()["error"]["code"] == "engine_launch_failed"

    @pytest.mark.parametrize("status", [400, 500, 503])
    async def test_an_error_answer_is_not_tried_again(self, status: int) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(b"{}", status=status)))
        exchange = await rig.ask(body=chat())
        assert exchange.status == (400 if status == 400 else 502)
        assert len(rig.upstream.sent) == 1
        assert rig.models.permits[0].failures == []

    async def test_a_hosted_provider_is_asked_once(self) -> None:
        rig = Rig(upstream=MemoryUpstream(GONE, MemoryResponse(completion())))
        exchange = await rig.ask(body=chat("big"))
        assert exchange.status == 502
        assert len(rig.upstream.sent) == 1

    async def test_an_explanation_that_breaks_off_does_not_hide_the_status(self) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse([b'{"error":', BROKEN], status=400)))
        assert (await rig.ask(body=chat())).status == 400


class TestQueue:
    async def test_waiting_is_measured(self) -> None:
        gate = asyncio.Event()
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(completion())), models=MemoryModels(waits=True, gate=gate))
        task = asyncio.create_task(rig.ask(body=chat()))
        await settle()
        rig.now += 1.5
        gate.set()
        assert (await task).status == 200
        assert rig.sink.last.queued_ms == 1500
        assert rig.models.priorities == ["standard"]

    async def test_an_engine_that_restarted_gets_its_new_key(self) -> None:
        rig = Rig(upstream=MemoryUpstream(MemoryResponse(completion()), MemoryResponse(completion())))
        await rig.ask(body=chat())
        endpoint = type(rig.models.endpoint)("127.0.0.1", 4002, "m-new", "another-key")
        rig.models.endpoint = endpoint
        await rig.ask(body=chat())
        sent = rig.upstream.sent[1]
        assert (sent.upstream.port, sent.json()["model"]) == (4002, "m-new")
        assert sent.headers[b"authorization"] == b"Bearer another-key"


class TestTimeouts:
    def rig(self, *script: object, **provider: object) -> Rig:
        return Rig(routes({**HOSTED, **provider}), MemoryUpstream(*script))  # type: ignore[arg-type]

    async def test_a_head_that_does_not_come(self) -> None:
        rig = self.rig(UpstreamTimeout("203.0.113.9", 0), timeout_ms=3000)
        exchange = await rig.ask(body=chat("big"))
        assert exchange.status == 504
        assert exchange.json()["error"]["code"] == "upstream_timeout"
        assert rig.upstream.sent[0].until == rig.now + 3
        assert rig.sink.last.error_class == "upstream_timeout"

    async def test_thirty_seconds_when_nothing_is_said(self) -> None:
        rig = self.rig(UpstreamTimeout("203.0.113.9", 0))
        assert (await rig.ask(body=chat("big"))).status == 504
        assert rig.upstream.sent[0].until == rig.now + 30

    async def test_a_named_time_out_covers_the_whole_stream(self) -> None:
        response = stream(chunk("a"), UpstreamTimeout("203.0.113.9", 0))
        exchange = await self.rig(response, timeout_ms=3000).ask(body=chat("big", stream=True))
        assert exchange.ending == "aborted"
        assert response.closed == 1
        assert response.extended == 0

    async def test_without_one_a_stream_that_began_goes_on(self) -> None:
        response = stream(chunk("a"), DONE)
        assert (await self.rig(response).ask(body=chat("big", stream=True))).ending == "finished"
        assert response.extended == 3600

    async def test_a_client_that_leaves_is_not_a_time_out(self) -> None:
        rig = self.rig(asyncio.Event(), timeout_ms=3000)
        task = asyncio.create_task(rig.gateway(rig.exchange(body=chat("big"))))
        await settle()
        await leave(task)
        assert rig.sink.last.error_class == "client_closed"

    async def test_an_engines_silence(self) -> None:
        rig = Rig(upstream=MemoryUpstream(UpstreamTimeout("127.0.0.1:4001", 1800)))
        exchange = await rig.ask(body=chat())
        assert exchange.status == 504
        assert b"4001" not in exchange.body
        assert rig.models.permits[0].failures == []
