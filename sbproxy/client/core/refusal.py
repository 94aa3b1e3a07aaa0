"""What a refusing HTTP answer of the admin API means, as one leaf of the error tree."""

from __future__ import annotations

from pydantic import ValidationError

from sbproxy.api.envelope import ErrorBody
from sbproxy.errors.client import ClientError, DaemonRefused, Forbidden, ProtocolMismatch, Unauthorized

MESSAGE_LIMIT = 2000


def refusal(status: int, body: bytes, *, url: str, username: str, action: str) -> ClientError:
    """The error for ``status`` (not 2xx). ``action`` is like ``GET /admin/drift``."""
    if status == 401:
        return Unauthorized(url, username)
    if 300 <= status < 400:
        return ProtocolMismatch(url, action, f"a redirect (HTTP {status})")
    try:
        envelope = ErrorBody.model_validate_json(body)
    except ValidationError:
        return ProtocolMismatch(url, action, f"HTTP {status} without an error message of ours")
    message, code = envelope.error[:MESSAGE_LIMIT], envelope.code or envelope.reason_code
    # 403 also says "this desired state is owned elsewhere"; that one carries its own code and remedy.
    if status == 403 and code in (None, "forbidden"):
        return Forbidden(username, action, message)
    return DaemonRefused(status, code, message)


def mismatch(error: ValidationError, *, url: str, action: str) -> ProtocolMismatch:
    """Where a 2xx body differs from the message type; never repeats the body itself."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the body"
    return ProtocolMismatch(url, action, f"{where}: {first['msg']}")
