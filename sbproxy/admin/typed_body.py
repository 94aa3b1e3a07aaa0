"""Reads a request body as one of the API's messages; what is wrong is named by its field and never quoted."""

from __future__ import annotations

from typing import TypeVar

import orjson
from aiohttp import web
from pydantic import ValidationError

from sbproxy.admin.replies import read_body
from sbproxy.api.envelope import ApiRequest
from sbproxy.config.core.model_errors import nearest
from sbproxy.errors.admin import InvalidBody

_Body = TypeVar("_Body", bound=ApiRequest)
_PATH = 128


async def typed_body(
    request: web.Request, shape: type[_Body], *, optional: bool = False, limit: int | None = None
) -> _Body:
    """``optional``: a missing body is an empty object. ``limit`` in bytes. Raises InvalidBody."""
    raw = await read_body(request)
    if limit is not None and len(raw) > limit:
        raise InvalidBody(f"the body is larger than {limit} bytes")
    if not raw.strip():
        if not optional:
            raise InvalidBody(f"the request body is missing; fields: {', '.join(shape.model_fields)}")
        raw = b"{}"
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise InvalidBody("invalid JSON body; expected an object")
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise InvalidBody(_problem(error, shape)) from None


def _problem(error: ValidationError, shape: type[ApiRequest]) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part)[:64] for part in first["loc"])[:_PATH]
    if first["type"] == "extra_forbidden":
        near = nearest(where, tuple(shape.model_fields))
        return f"{where}: unknown field" + (f"; did you mean {near!r}?" if near else "")
    if first["type"] == "missing":
        return f"{where}: is required"
    return f"{where or 'the body'}: {first['msg']}"
