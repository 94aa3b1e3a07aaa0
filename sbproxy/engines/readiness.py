"""Asks an engine whether it answers, and whether it is ours: small GET requests over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json

from sbproxy.engines.core.model import Endpoint

MAX_ANSWER_BYTES = 256 * 1024

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Reasons not to get through that lie in this daemon or this machine."""


async def is_healthy(endpoint: Endpoint, timeout_s: float) -> bool:
    """Whether /health says 200; no answer, a late or a strange one is False."""
    return (await _get(endpoint, "/health", timeout_s))[0] == 200


async def still_answers(endpoint: Endpoint, timeout_s: float) -> bool:
    """As ``is_healthy``, but a daemon that has run out of descriptors or ports is no evidence against the engine."""
    try:
        async with asyncio.timeout(timeout_s):
            return (await _exchange(endpoint, "/health"))[0] == 200
    except OSError as failure:
        return failure.errno in _OURS
    except (ValueError, IndexError):
        return False


async def is_ours(endpoint: Endpoint, timeout_s: float) -> bool:
    """Whether /v1/models lists our alias, which is random: a stranger on this port cannot know it."""
    status, body = await _get(endpoint, "/v1/models", timeout_s)
    if status != 200:
        return False
    try:
        listed = json.loads(body)["data"]
        return any(entry["id"] == endpoint.alias for entry in listed)
    except (ValueError, KeyError, TypeError):
        return False


async def _get(endpoint: Endpoint, path: str, timeout_s: float) -> tuple[int, bytes]:
    """(status, body); status 0 when there is no HTTP answer in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(endpoint, path)
    except (OSError, TimeoutError, ValueError, IndexError):
        return 0, b""


async def _exchange(endpoint: Endpoint, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {endpoint.host}:{endpoint.port}\r\n"
            f"Authorization: Bearer {endpoint.api_key}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b""
        while len(answer) < MAX_ANSWER_BYTES and (chunk := await reader.read(16 * 1024)):
            answer += chunk
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body
