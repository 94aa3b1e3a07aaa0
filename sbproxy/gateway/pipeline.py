"""The data plane's handler: host, path, body and model decide where a request goes; every one leaves a record.

Decisions are in ``core``, carrying bytes in ``relay``, errors' answers in ``answers``. Keys and policy come
between reading the body and dispatch.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator

from sbproxy.errors import SbproxyError
from sbproxy.errors.gateway import (
    BodyTooLarge,
    EncodedBody,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    UnknownHost,
)
from sbproxy.errors.modelhost import NoReadyReplica
from sbproxy.gateway.answers import JSON, answer, answer_error
from sbproxy.gateway.call import Call
from sbproxy.gateway.core.providers import HostedProvider, ManagedProvider, Provider
from sbproxy.gateway.core.request_body import check_media_type, read_inference
from sbproxy.gateway.core.routes import OriginRoutes, RouteTable
from sbproxy.gateway.core.surfaces import find_target, shown
from sbproxy.gateway.dispatch_hosted import HostedDispatch
from sbproxy.gateway.dispatch_managed import ManagedDispatch
from sbproxy.gateway.exchange import Exchange, Request, UpstreamClient
from sbproxy.gateway.key_gate import KeyGate, allowed_by
from sbproxy.gateway.models_listing import model_page, models_page
from sbproxy.gateway.ports import ManagedModels, RequestSink
from sbproxy.observe.core.record import RequestRecord
from sbproxy.observe.core.redact import redact_query

CLIENT_CLOSED = 499
UNROUTED_BODY_BYTES = 1 << 20
"""What is read of a body that no origin will ever see, so that its sender reads why."""
_METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_SANE_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_READ = ("GET", "HEAD", "OPTIONS")
_PATH_CHARACTERS = 1024
_IDS_DRAWN = 128


class Gateway:
    """Handles exchanges of the data-plane listener. ``publish`` swaps the routes for requests that come later."""

    def __init__(
        self,
        routes: RouteTable,
        managed: ManagedModels,
        upstream: UpstreamClient,
        sink: RequestSink,
        *,
        metrics_text: Callable[[], bytes],
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
        keys: KeyGate | None = None,
    ) -> None:
        self._routes = routes
        self._managed = managed
        self._local = ManagedDispatch(managed, upstream)
        self._hosted = HostedDispatch(upstream)
        self._sink = sink
        self._keys = keys
        self._metrics_text = metrics_text
        self._clock = clock
        self._wall_clock = wall_clock
        self._fresh_ids = _fresh_ids()

    def publish(self, routes: RouteTable) -> None:
        """Use other routes from the next request on; those under way keep the ones they began with."""
        self._routes = routes

    def body_limit(self, host: str) -> int:
        """The largest body in bytes that is worth reading for a host (contracts section 5)."""
        origin = self._routes.origin_for(host)
        return UNROUTED_BODY_BYTES if origin is None else origin.max_body_bytes

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request. Only CancelledError leaves it (the client left), and what is a defect of ours."""
        request = exchange.request
        routes = self._routes
        origin = routes.origin_for(request.host)
        request_id = self._request_id(request)
        record = RequestRecord(
            request_id, origin.host if origin is not None else "", request.method, request.path, request.client_ip
        )
        # Not as keywords: a class that is called with those first builds a dict of them.
        record.bytes_in = len(request.body)
        record.config_revision = routes.revision
        call = Call(exchange, record, request_id, self._clock)
        keys, failure = self._keys, None
        try:
            if keys is not None and origin is not None and request.path != "/metrics":
                await keys.identify(call, origin)
            provider = self._route(call, origin)
            if keys is not None and call.governed is not None and origin is not None and provider is not None:
                provider = await keys.admit(call, origin, provider)
            if type(provider) is HostedProvider:
                await self._hosted.run(call, provider)
            elif type(provider) is ManagedProvider:
                try:
                    await self._local.run(call, provider)
                except NoReadyReplica as error:
                    await self._fall_back(call, origin, error)
        except SbproxyError as error:
            failure = error
            answer_error(call, error)
        except asyncio.CancelledError:
            if not call.answered:
                record.status = CLIENT_CLOSED
                record.error_class = record.error_code = "client_closed"
            raise
        finally:
            if keys is not None and call.governed is not None:
                keys.settle(call, failure)
            self._finish(call)

    async def _fall_back(self, call: Call, origin: OriginRoutes | None, error: NoReadyReplica) -> None:
        """Answer from the next provider that offers the model, if the cold deployment's policy says so."""
        if origin is None or not error.fallback:
            raise error
        for spare in origin.spares.get(call.model, ()):
            if self._keys is not None and not self._keys.may_fall_back(call, spare):
                continue
            call.record.failover_engaged = True
            try:
                if type(spare) is ManagedProvider:
                    await self._local.run(call, spare)
                elif type(spare) is HostedProvider:
                    await self._hosted.run(call, spare)
                return
            except NoReadyReplica as another:
                if not another.fallback:
                    raise
        raise error

    def _route(self, call: Call, origin: OriginRoutes | None) -> Provider | None:
        """The provider to run on; None when the answer is given already."""
        request = call.exchange.request
        if request.path == "/metrics" or (request.path == "/health" and origin is None):
            self._answer_operator(call)
            return None
        if origin is None:
            raise UnknownHost(shown(request.host))
        target = find_target(request.method, request.path)
        call.surface = call.record.surface = target.surface
        if request.method == "OPTIONS":
            answer(call, 204, ((b"allow", ", ".join(target.methods).encode()),), b"")
            return None
        if target.surface == "models":
            model = target.model_id
            allows = None if call.governed is None else allowed_by(call.governed.key)
            if model is None:
                page = models_page(origin, self._managed, allows)
            else:
                page = model_page(origin, model, self._managed, allows)
            answer(call, 200, (JSON,), page)
            return None
        call.path = target.path
        return _read_and_choose(call, origin)

    def _answer_operator(self, call: Call) -> None:
        request = call.exchange.request
        if request.method not in _READ:
            raise MethodNotAllowed(shown(request.method), request.path, _READ)
        if request.method == "OPTIONS":
            answer(call, 204, ((b"allow", ", ".join(_READ).encode()),), b"")
        elif request.path == "/metrics":
            answer(call, 200, (_METRICS_TYPE,), self._metrics_text())
        else:
            answer(call, 200, (JSON,), b'{"status":"ok"}')

    def _request_id(self, request: Request) -> str:
        """The caller's id when it is sane, so that both sides' logs can be joined; else a fresh one."""
        given = request.header(b"x-request-id")
        if given is not None and _SANE_REQUEST_ID.fullmatch(given):
            return given.decode("ascii")
        return next(self._fresh_ids)

    def _finish(self, call: Call) -> None:
        record = call.record
        if not record.status:
            # An exception that is a defect of ours is on its way to the server, which logs it and answers 500.
            record.status = 500
            record.error_class = record.error_code = "internal_error"
        exchange = call.exchange
        request = exchange.request
        record.latency_ms = (self._clock() - request.received_at) * 1000
        record.finished_at = self._wall_clock()
        record.bytes_out = exchange.bytes_out
        if request.query:
            record.path = f"{request.path}?{redact_query(request.query[:_PATH_CHARACTERS])}"
        if len(record.path) > _PATH_CHARACTERS:
            record.path = record.path[:_PATH_CHARACTERS]
        self._sink.finished(record)


def _fresh_ids() -> Iterator[str]:
    """128 random bits each, in hexadecimal. The system is asked for many at once: a call costs more than an id."""
    while True:
        digits = os.urandom(_IDS_DRAWN * 16).hex()
        for at in range(0, len(digits), 32):
            yield digits[at : at + 32]


def _read_and_choose(call: Call, origin: OriginRoutes) -> Provider:
    request = call.exchange.request
    if len(request.body) > origin.max_body_bytes:
        raise BodyTooLarge(origin.max_body_bytes)
    kind = request.header(b"content-type")
    if kind is not None and kind != b"application/json":
        check_media_type(call.surface, kind)
    coding = request.header(b"content-encoding")
    if coding is not None and coding.lower() != b"identity":
        raise EncodedBody(call.surface)
    inference = call.inference = read_inference(call.surface, request.body)
    model = inference.model or origin.default_model
    if model is None:
        raise InvalidRequest("is required: this origin has no default model", "model")
    provider = origin.provider_for(model)
    if provider is None:
        raise ModelNotFound(shown(model), origin.near(model))
    call.model = call.record.model = model
    return provider
