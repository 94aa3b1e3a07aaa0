"""Decides whether a JSON body is a request that may go on, and what of it changes on the way to the upstream.

This is the cheap gate: shapes that an upstream would answer wrongly or dangerously. What requests to engines of ours
become between ``read_inference`` and ``body_for`` is decided in ``normalise``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import orjson

from sbproxy.errors.gateway import (
    InvalidRequest,
    MultipartRefused,
    UnsupportedMediaType,
)
from sbproxy.gateway.core.surfaces import Surface

_BRACKETS = 250
"""Fewer opening brackets than this cannot nest too deeply, so nearly every body is spared the look."""
_MODEL_CHARACTERS = 256
_JSON_MEDIA = re.compile(rb"(?:application|text)/(?:[a-z0-9.-]{1,64}\+)?json")


@dataclass(slots=True)
class Inference:
    """A checked request. ``model`` is what the caller named, or None; ``document`` is ours to change."""

    document: dict[str, Any] = field(repr=False)
    model: str | None
    stream: bool
    wants_usage: bool


def check_media_type(surface: Surface, content_type: bytes) -> None:
    """Only JSON goes on, under any of its names. Raises MultipartRefused (contracts section 50), UnsupportedMediaType.

    A browser sends other types to any site without asking it first; JSON it may not.
    """
    media = content_type.partition(b";")[0].strip().lower()
    if media.startswith(b"multipart/"):
        raise MultipartRefused(surface)
    if _JSON_MEDIA.fullmatch(media) is None:
        raise UnsupportedMediaType(surface)


def read_inference(surface: Surface, body: bytes) -> Inference:
    """Parse and check. Raises InvalidRequest with the OpenAI path of the field at fault; never quotes the body."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not body.strip():
            raise InvalidRequest("the request body is empty; send a JSON object") from None
        raise InvalidRequest(f"the request body is not valid JSON (near byte {error.pos})") from None
    if type(document) is not dict:
        raise InvalidRequest("the request body must be a JSON object")
    if len(body) > _BRACKETS and body.count(b"{") + body.count(b"[") > _BRACKETS:
        _check_depth(document)
    model = document.get("model")
    if model is not None:
        _check_model(model)
    if surface == "chat_completions":
        _check_messages(document.get("messages"))
    elif surface == "completions":
        _check_text(document.get("prompt"), "prompt")
    else:
        _check_text(document.get("input"), "input")
    count = document.get("n")
    if count is not None and (type(count) is not int or not 1 <= count <= 128):
        raise InvalidRequest("must be a whole number from 1 to 128", "n")
    stream = document.get("stream")
    if stream is None or stream is False:
        if document.get("stream_options") is not None:
            raise InvalidRequest("is only allowed together with stream: true", "stream_options")
        return Inference(document, model, False, False)
    if stream is not True:
        raise InvalidRequest("must be true or false", "stream")
    if surface == "embeddings":
        raise InvalidRequest("embeddings cannot be streamed", "stream")
    return Inference(document, model, True, _wants_usage(document.get("stream_options")))


def _check_depth(document: dict[str, Any]) -> None:
    """orjson reads 1024 levels and writes 254; what cannot be sent on is refused before any engine is woken for it."""
    try:
        orjson.dumps(document)
    except TypeError:
        raise InvalidRequest("the request body is nested too deeply") from None


def body_for(request: Inference, model: str) -> bytes:
    """The body to send: ``model`` as the upstream calls it, and usage asked for on every stream.

    The body is always written anew, because what was checked must be what is read: with a key given twice, or spelled
    with escapes, the upstream's parser could see another model than ours did.
    """
    document = request.document
    document["model"] = model
    if request.stream and not request.wants_usage:
        document["stream_options"] = {**(document.get("stream_options") or {}), "include_usage": True}
    return orjson.dumps(document)


def _check_model(model: object) -> None:
    if type(model) is not str:
        raise InvalidRequest("must be a string", "model")
    if not model or len(model) > _MODEL_CHARACTERS or not model.isprintable():
        raise InvalidRequest(f"must hold 1 to {_MODEL_CHARACTERS} printable characters", "model")


def _check_messages(messages: object) -> None:
    if messages is None:
        raise InvalidRequest("is required", "messages")
    if type(messages) is not list:
        raise InvalidRequest("must be a list of messages", "messages")
    if not messages:
        raise InvalidRequest("must hold at least one message", "messages")
    for at, message in enumerate(messages):
        if type(message) is not dict:
            raise InvalidRequest("must be an object with a role and a content", f"messages[{at}]")
        if type(message.get("role")) is not str:
            raise InvalidRequest("must be a string", f"messages[{at}].role")
        content = message.get("content")
        if type(content) is list:
            _check_parts(content, f"messages[{at}].content")
        elif content is not None and type(content) is not str:
            raise InvalidRequest("must be a string, a list of parts, or null", f"messages[{at}].content")


def _check_parts(parts: list[Any], path: str) -> None:
    for index, part in enumerate(parts):
        if type(part) is not dict or type(part.get("type")) is not str:
            raise InvalidRequest("must be an object with a type", f"{path}[{index}]")


def _check_text(value: object, param: str) -> None:
    if value is None:
        raise InvalidRequest("is required", param)
    if type(value) not in (str, list) or not value:
        raise InvalidRequest("must be a text or a list that is not empty", param)


def _wants_usage(options: object) -> bool:
    if options is None:
        return False
    if type(options) is not dict:
        raise InvalidRequest("must be an object", "stream_options")
    include = options.get("include_usage")
    if include is not None and type(include) is not bool:
        raise InvalidRequest("must be true or false", "stream_options.include_usage")
    return include is True
