"""Writes whole answers: JSON with the gateway's own headers, and errors by the table of ``statuses``."""

from __future__ import annotations

import logging
import math
from functools import lru_cache

from sbproxy.errors import SbproxyError
from sbproxy.errors.gateway import (
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    ProviderRefused,
    RemoteContentRefused,
    UnsupportedContent,
)
from sbproxy.errors.governance import RateExceeded
from sbproxy.errors.modelhost import AdmissionRejected, InsufficientMemory
from sbproxy.gateway.call import Call
from sbproxy.gateway.core.error_body import managed_model_error, openai_error
from sbproxy.gateway.exchange import HeaderPairs
from sbproxy.gateway.statuses import Outcome, outcome_of

_log = logging.getLogger(__name__)
_LOGGED_CHARACTERS = 500

JSON = (b"content-type", b"application/json")
EVENTS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    # Without it nginx collects a stream before it sends any of it (field report 34).
    (b"x-accel-buffering", b"no"),
)


def answer(call: Call, status: int, headers: HeaderPairs, body: bytes) -> None:
    """Send a whole answer with the request's id."""
    call.record.status = status
    call.exchange.respond(status, (*headers, (b"x-request-id", call.request_id.encode())), body)
    call.answered = True


def answer_inference(call: Call, body: bytes) -> None:
    """Send a model's whole answer."""
    call.record.status = 200
    call.exchange.respond(200, answer_headers(call, (JSON,)), body)
    call.answered = True


def answer_headers(call: Call, first: HeaderPairs) -> HeaderPairs:
    """``first`` and what every successful inference carries (document 1, dispatch)."""
    return (
        *first,
        (b"x-request-id", call.request_id.encode()),
        *_route_headers(call.model, call.record.route_class),
    )


@lru_cache(maxsize=512)
def _route_headers(model: str, route_class: str | None) -> HeaderPairs:
    return (
        (b"x-sbproxy-logical-model", header_text(model)),
        (b"x-sbproxy-route-class", b"local" if route_class == "local" else b"external"),
    )


def header_text(text: str) -> bytes:
    """A model name as a header value; what is not ASCII is percent-encoded."""
    if text.isascii():
        return text.encode()
    return b"".join(b"%c" % byte if byte < 0x80 else b"%%%02X" % byte for byte in text.encode("utf-8", "replace"))


def answer_error(call: Call, error: SbproxyError) -> None:
    """Answer with an error; an answer that has begun is cut instead, so that the client sees it is not whole."""
    outcome = outcome_of(error)
    record = call.record
    status = error.status if isinstance(error, ProviderRefused) else outcome.status
    code = _code(error, outcome)
    record.error_code = code
    record.error_class = _error_class(error, outcome)
    if outcome.sentence is not None:
        _log.warning("request %s: %s (%s)", call.request_id, str(error)[:_LOGGED_CHARACTERS], code)
    elif isinstance(error, ProviderRefused) and status >= 500:
        # A provider's own sentence may quote the prompt, and prompts stay out of the log.
        _log.warning("request %s: %s answered HTTP %d", call.request_id, error.provider, status)
    if call.started:
        record.error_class = "stream_broken"
        call.exchange.abort()
        return
    headers = [JSON, *_extra_headers(error, outcome)]
    answer(call, status, headers, _body(call, error, outcome, code))


def _body(call: Call, error: SbproxyError, outcome: Outcome, code: str | None) -> bytes:
    message = outcome.sentence.replace("{model}", f"the model {call.model!r}") if outcome.sentence else error.text()
    if outcome.managed:
        retryable = error.may_retry if isinstance(error, AdmissionRejected | InsufficientMemory) else error.retryable
        if isinstance(error, AdmissionRejected | InsufficientMemory) and error.where:
            message = f"{message}: {error.where}"
        return managed_model_error(message, code=code or error.code, request_id=call.request_id, retryable=retryable)
    if isinstance(error, ProviderRefused):
        return openai_error(message, kind=error.kind, code=code, param=error.param)
    if isinstance(error, InvalidRequest | RemoteContentRefused | UnsupportedContent):
        return openai_error(message, kind=outcome.kind, code=code, param=error.param)
    param = "model" if isinstance(error, ModelNotFound) else None
    return openai_error(message, kind=outcome.kind, code=code, param=param)


def _code(error: SbproxyError, outcome: Outcome) -> str | None:
    if isinstance(error, AdmissionRejected):
        return error.reason
    if isinstance(error, ProviderRefused):
        return error.provider_code
    return outcome.code or error.code


def _error_class(error: SbproxyError, outcome: Outcome) -> str:
    if isinstance(error, ProviderRefused):
        if error.status == 429:
            return "rate_limited"
        return "upstream_5xx" if error.status >= 500 else "upstream_4xx"
    return outcome.error_class


def _extra_headers(error: SbproxyError, outcome: Outcome) -> HeaderPairs:
    if isinstance(error, MethodNotAllowed):
        return ((b"allow", ", ".join(error.allow).encode()),)
    if isinstance(error, ProviderRefused):
        return ((b"retry-after", error.retry_after.encode()),) if error.retry_after else ()
    seconds = outcome.retry_after_s
    if (
        isinstance(error, AdmissionRejected | InsufficientMemory)
        and error.may_retry
        and error.retry_after_ms is not None
    ):
        seconds = max(1, math.ceil(error.retry_after_ms / 1000))
    elif isinstance(error, RateExceeded):
        seconds = error.retry_after_s
    return ((b"retry-after", b"%d" % seconds),) if seconds is not None else ()
