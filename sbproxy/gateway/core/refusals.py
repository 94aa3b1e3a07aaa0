"""Decides what an upstream's error answer means to the caller.

An engine's words are never passed on: they quote prompts, tools and file paths. A hosted provider's are made for
callers.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from sbproxy.errors import SbproxyError
from sbproxy.errors.gateway import (
    ContextLengthExceeded,
    EngineFault,
    EngineRefused,
    ProviderFault,
    ProviderRefused,
    UnsupportedByModel,
    UnsupportedContent,
)
from sbproxy.gateway.core.surfaces import Surface

_MESSAGE_CHARACTERS = 1000
_FIELD_CHARACTERS = 100
_MEDIA_WORDS = re.compile(r"(image|audio|video) input is not supported")
# An embedding input is encoded in one batch, which holds a whole context; the engine calls a longer one its own fault.
_TOO_LARGE = re.compile(r"input \(([0-9]{1,9}) tokens\) is too large to process\. .{0,80}batch size: ([0-9]{1,9})\)")
# What an engine finds wrong while it reads a request and fills the chat template, it too calls its own fault.
_OF_THE_REQUEST = re.compile(
    r"Failed to parse (?:messages|tools)|Unable to generate parser|Unknown reasoning format"
    r"|json\.exception\.type_error\.302|[Jj]inja|raise_exception|[Cc]hat template"
    r"|at (?:row|line) [0-9]{1,9}, column [0-9]"
)
_LOOKED_AT_CHARACTERS = 4096
_NO_LOGITS = "the current context does not logits computation"
_NO_POOLING = "Pooling type 'none' is not OAI compatible"
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KIND = re.compile(r"[a-z_]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_RETRY_AFTER = re.compile(r"[\x20-\x7e]{1,64}")


def engine_refusal(status: int, body: bytes, *, model: str, surface: Surface) -> SbproxyError:
    """The error that a managed engine's answer stands for; ``model`` is the public name."""
    error = error_object(body)
    message = error.get("message")
    kind = error.get("type")
    if kind == "exceed_context_size_error":
        prompt, context = error.get("n_prompt_tokens"), error.get("n_ctx")
        if type(prompt) is int and type(context) is int:
            return ContextLengthExceeded(model, prompt, context)
    text = message if isinstance(message, str) else ""
    if status == 501 or kind == "not_supported_error" or text.startswith(_NO_LOGITS):
        return UnsupportedByModel(model, surface)
    if text.startswith(_NO_POOLING):
        # Nothing that a caller could correct: the log tells the operator.
        return EngineFault(model, status, "the model file names no pooling; set extra_args: [--pooling, mean]")
    too_large = _TOO_LARGE.match(text)
    if too_large is not None:
        return ContextLengthExceeded(model, int(too_large[1]), int(too_large[2]))
    media = _MEDIA_WORDS.match(text)
    if media is not None:
        return UnsupportedContent(model, media[1])
    if status in (400, 413, 422) or _OF_THE_REQUEST.search(text, 0, _LOOKED_AT_CHARACTERS):
        return EngineRefused(model, status)
    return EngineFault(model, status, kind if isinstance(kind, str) and _KIND.fullmatch(kind) else "")


def provider_refusal(
    status: int,
    body: bytes,
    *,
    provider: str,
    public: str,
    upstream_model: str,
    retry_after: bytes | None,
    secret: str | None = None,
) -> SbproxyError:
    """The error that a hosted provider's answer stands for. ``secret``, its key, is masked wherever it stands."""
    error = _without(secret, error_object(body))
    message = error.get("message")
    if not 400 <= status <= 599 or not isinstance(message, str) or not message.strip():
        return ProviderFault(provider, status, "not an OpenAI error")
    if status in (401, 403):
        # The credential at fault is the operator's, not the caller's, and providers like to quote a part of it.
        message = f"provider {provider} did not accept this gateway's credential; tell the operator"
        error = {}
    elif upstream_model != public:
        message = message.replace(upstream_model, public)
    retry = retry_after.decode("latin-1") if retry_after is not None else None
    return ProviderRefused(
        provider,
        status,
        _bounded(message, _MESSAGE_CHARACTERS),
        _word(error.get("type")) or ("server_error" if status >= 500 else "invalid_request_error"),
        _text(error.get("param")),
        _word(error.get("code")),
        retry if retry is not None and _RETRY_AFTER.fullmatch(retry) else None,
    )


def event_status(failure: dict[str, Any]) -> int:
    """The HTTP status that an error event of a stream stands for; 502 when it names none."""
    error = failure.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int and 400 <= code <= 599 else 502


def error_object(body: bytes) -> dict[str, Any]:
    """The ``error`` member of a JSON body; empty when there is none."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) else {}


def _without(secret: str | None, error: dict[str, Any]) -> dict[str, Any]:
    """The scalar fields of an error with the key masked; a provider may quote a part of it in any of them."""
    if not secret:
        return error
    parts = {secret, secret[: len(secret) // 2], secret[len(secret) // 2 :]} if len(secret) >= 16 else {secret}
    masked = dict(error)
    for name, value in error.items():
        if isinstance(value, str):
            for part in sorted(parts, key=len, reverse=True):
                value = value.replace(part, "[REDACTED]")
            masked[name] = value
    return masked


def _word(value: object) -> str | None:
    """A machine's word, such as ``rate_limit_exceeded``; anything else is no word and is left out."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return text if _WORD.fullmatch(text) else None


def _text(value: object) -> str | None:
    return _bounded(str(value), _FIELD_CHARACTERS) if isinstance(value, str | int) else None


def _bounded(text: str, limit: int) -> str:
    # Cut before and after: a replacement may shorten it, and the pattern must not run over megabytes.
    return _CONTROL.sub(" ", text[: limit * 2]).strip()[:limit]
