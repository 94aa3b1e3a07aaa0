"""Carries an upstream's answer to the client: whole JSON answers, and event streams with back-pressure.

Nothing reaches the client before the first event is here and good, so that every earlier failure still gets a status.
What becomes of bodies and events is decided in ``core``; who releases what afterwards is the dispatcher's.
"""

from __future__ import annotations

import asyncio

import orjson

from sbproxy.errors.gateway import UpstreamBroken, UpstreamError, UpstreamTooLarge
from sbproxy.gateway.answers import EVENTS, answer_headers, answer_inference
from sbproxy.gateway.call import Call
from sbproxy.gateway.core.chunks import ChunkRewriter
from sbproxy.gateway.core.refusals import event_status
from sbproxy.gateway.core.sse import EventTooLarge, SseReader
from sbproxy.gateway.core.unary import public_answer
from sbproxy.gateway.core.usage import estimate_tokens
from sbproxy.gateway.exchange import UpstreamResponse

UNARY_LIMIT_BYTES = 64 << 20
"""Embeddings of a large batch come to tens of megabytes."""
EVENT_LIMIT_BYTES = 4 << 20
ERROR_LIMIT_BYTES = 256 << 10
_TAIL_S = 0.25


async def relay(call: Call, response: UpstreamResponse, source: str) -> tuple[int, bytes] | None:
    """Answer the call from a response whose head is here; ``source`` names the upstream in errors.

    Returns None, or the status and body of an error answer, which stands for something else with each kind of upstream.
    Raises UpstreamBroken for what is no answer of this API, and what reading raises. The caller closes the response.
    """
    if response.status != 200:
        return response.status, await _error_body(response)
    kind = response.header(b"content-type")
    if kind is not None and kind.startswith(b"text/event-stream"):
        if not call.inference.stream:
            raise UpstreamBroken(source, "it sent an event stream where a whole answer was asked for")
        return await _relay_stream(call, response, source)
    body = await response.read(UNARY_LIMIT_BYTES)
    try:
        body, usage, estimated = public_answer(body, call.model, len(call.exchange.request.body))
    except ValueError:
        raise UpstreamBroken(source, "it sent something that is not a JSON answer") from None
    record = call.record
    record.tokens_in, record.tokens_out = usage
    record.usage_estimated = estimated
    answer_inference(call, body)
    return None


async def _relay_stream(call: Call, response: UpstreamResponse, source: str) -> tuple[int, bytes] | None:
    stream = _Stream(call, response)
    rewriter = stream.rewriter
    call.record.streamed = True
    try:
        while await response.pour(stream.take) and not stream.over:
            await call.exchange.drain()
    finally:
        _note_usage(call, rewriter)
    if stream.too_large:
        raise UpstreamTooLarge(source, EVENT_LIMIT_BYTES)
    if rewriter.failure is not None:
        return event_status(rewriter.failure), orjson.dumps(rewriter.failure)
    if not rewriter.done:
        raise UpstreamBroken(source, "the stream ended without its final event")
    call.exchange.finish()
    call.answered = True
    # What is left is the end of the body; reading it keeps the connection good for the next request.
    try:
        async with asyncio.timeout(_TAIL_S):
            await response.pour(lambda _: True)
    except (TimeoutError, UpstreamError):
        pass
    return None


class _Stream:
    """Takes an event stream apart and writes it to the client. ``over``: it wants no more, ever."""

    __slots__ = ("_call", "_exchange", "_feed", "_response", "over", "rewriter", "too_large")

    def __init__(self, call: Call, response: UpstreamResponse) -> None:
        self.rewriter = ChunkRewriter(call.model, keep_usage=call.inference.wants_usage)
        self.over = False
        self.too_large = False
        self._call = call
        self._exchange = call.exchange
        self._response = response
        self._feed = SseReader(EVENT_LIMIT_BYTES).feed

    def take(self, piece: bytes) -> bool:
        """Relay what is whole now; False when no more is wanted, for now or ever."""
        rewriter = self.rewriter
        try:
            events = self._feed(piece)
        except EventTooLarge:
            self.too_large = self.over = True
            return False
        out = rewriter.rewrite(events[0]) if len(events) == 1 else _rewrite_all(events, rewriter)
        exchange = self._exchange
        if out and (self._call.started or rewriter.failure is None):
            if not self._call.started:
                self._start()
            exchange.write(out)
        if rewriter.done or rewriter.failure is not None:
            self.over = True
            return False
        return not exchange.paused

    def _start(self) -> None:
        call = self._call
        call.exchange.start(200, answer_headers(call, EVENTS))
        call.started = True
        call.record.status = 200
        call.record.ttft_ms = call.elapsed_ms()
        if call.stretch_s is not None:
            self._response.extend(call.stretch_s)


def _rewrite_all(events: list[bytes], rewriter: ChunkRewriter) -> bytes:
    out = b""
    for event in events:
        out += rewriter.rewrite(event)
        if rewriter.done or rewriter.failure is not None:
            break
    return out


def _note_usage(call: Call, rewriter: ChunkRewriter) -> None:
    """Also of a stream that broke or that the client left: what was delivered is counted (field report 32)."""
    record = call.record
    if rewriter.usage is not None:
        record.tokens_in, record.tokens_out = rewriter.usage
    elif call.started:
        record.tokens_in = estimate_tokens(len(call.exchange.request.body))
        record.tokens_out = rewriter.delivered
        record.usage_estimated = True


async def _error_body(response: UpstreamResponse) -> bytes:
    try:
        return await response.read(ERROR_LIMIT_BYTES)
    except UpstreamError:
        # The status alone says enough; a failure to read its explanation must not hide it.
        return b""
