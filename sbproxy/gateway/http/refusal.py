"""Why a request never reaches the pipeline: the answers that the server gives on its own, in the OpenAI error shape.

Texts name the rule that was broken and never repeat what the client sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import orjson

from sbproxy.gateway.exchange import HeaderPairs

_JSON = (b"content-type", b"application/json")


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP status, a stable code and a sentence. The connection is closed after it."""

    status: int
    code: str
    message: str
    retry_after_s: int | None = None

    def headers(self) -> HeaderPairs:
        """The fields of the answer but for its framing."""
        if self.retry_after_s is None:
            return (_JSON,)
        return (_JSON, (b"retry-after", b"%d" % self.retry_after_s))

    def body(self) -> bytes:
        """The OpenAI error object as JSON."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return orjson.dumps(
            {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}},
        )


def malformed(message: str) -> Refusal:
    """A 400 for a request that is not HTTP/1.1 as this server accepts it."""
    return Refusal(400, "invalid_request", message)


def body_too_large(limit: int) -> Refusal:
    """A 413; ``limit`` in bytes."""
    return Refusal(413, "body_too_large", f"The request body is larger than the {limit} bytes that are taken here.")


TARGET_TOO_LONG = Refusal(414, "uri_too_long", "The request target is longer than this server accepts.")
HEAD_TOO_LARGE = Refusal(431, "headers_too_large", "The request's header fields are larger than this server accepts.")
TOO_MANY_HEADERS = Refusal(431, "headers_too_large", "The request has more header fields than this server accepts.")
LENGTH_TOO_LARGE = Refusal(413, "body_too_large", "The request's Content-Length is larger than any body taken here.")
HEAD_TIMEOUT = Refusal(408, "request_timeout", "The request's header fields did not arrive in time.")
BODY_TIMEOUT = Refusal(408, "request_timeout", "The request body did not arrive in time.")
EXPECTATION_FAILED = Refusal(417, "expectation_failed", "The only expectation this server meets is 100-continue.")
UNKNOWN_METHOD = Refusal(501, "not_implemented", "This server does not implement the request's method.")
UNKNOWN_CODING = Refusal(501, "not_implemented", "This server does not implement the request's transfer coding.")
UNKNOWN_VERSION = Refusal(505, "http_version_not_supported", "This server speaks HTTP/1.1 and HTTP/1.0 only.")
TOO_MANY_CONNECTIONS = Refusal(
    503, "overloaded", "This server has as many connections as it accepts; try again soon.", retry_after_s=1
)
TOO_MANY_BODIES = Refusal(
    503, "overloaded", "This server holds as many bytes of request bodies as it can; try again soon.", retry_after_s=1
)
HANDLER_FAILED = Refusal(500, "internal_error", "The server failed to answer this request; the log tells where.")
