"""Decides the JSON of an error answer: the OpenAI shape, and document 1's for managed models (contracts section 23)."""

from __future__ import annotations

from typing import Any

import orjson


def openai_error(message: str, *, kind: str, code: str | None, param: str | None = None) -> bytes:
    """``{"error": {message, type, param, code}}``."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def managed_model_error(message: str, *, code: str, request_id: str, retryable: bool) -> bytes:
    """The managed availability error; ``sbproxy_reason`` repeats the code outside of the error object."""
    error: dict[str, Any] = {
        "message": message,
        "type": "managed_model_error",
        "code": code,
        "request_id": request_id,
        "retryable": retryable,
    }
    return orjson.dumps({"error": error, "sbproxy_reason": code})
