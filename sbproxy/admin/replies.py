"""How the admin API reads bodies and writes answers: JSON both ways, everything bounded (contracts section 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import orjson
from aiohttp import web
from pydantic import BaseModel

from sbproxy.api.envelope import ErrorBody
from sbproxy.errors.admin import InvalidBody

MAX_BODY = 512 * 1024
BODY_TIMEOUT_S = 10.0


def reply(
    answer: BaseModel, status: int = 200, *, omit_absent: bool = False, headers: Mapping[str, str] | None = None
) -> web.Response:
    """``omit_absent`` leaves out what is None, where the document says "omitted" and not ``null``."""
    text = answer.model_dump_json(exclude_none=omit_absent)
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)


def reply_json(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


def refuse(
    status: int,
    text: str,
    *,
    code: str | None = None,
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    """The error envelope. A stable word goes out under both names that clients look for (contracts section 49)."""
    body = ErrorBody(error=text, code=code, reason_code=code).model_dump(exclude_none=True)
    return web.Response(
        status=status, body=orjson.dumps({**body, **(extra or {})}), content_type="application/json", headers=headers
    )


def without_folder(text: str, path: str | None) -> str:
    """``text`` with the file at ``path`` named, but not the folders that it lies in."""
    return text.replace(path, PurePath(path).name) if path else text


def too_large() -> web.Response:
    text = f"the request body is larger than {MAX_BODY} bytes"
    response = refuse(413, text, code="request_body_too_large")
    # The rest of the body is not read, so the connection cannot be used again.
    response.force_close()
    return response


async def read_object(request: web.Request, expected: str) -> dict[str, Any]:
    """The body as a JSON object; InvalidBody when it is anything else. ``expected`` names the shape for people."""
    raw = await read_body(request)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise InvalidBody(f"invalid JSON body; expected {expected}")
    return value


async def read_body(request: web.Request) -> bytes:
    """At most MAX_BODY bytes, which the application sees to. Raises InvalidBody when they do not come in time."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError:
        raise InvalidBody(f"the request body did not arrive within {BODY_TIMEOUT_S:g} s") from None
