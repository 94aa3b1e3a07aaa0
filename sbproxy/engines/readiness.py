"""Asks an engine whether it answers, and whether it is ours: small GET requests over loopback.

They carry no key where the engine answers without one, because whoever sits on the port may be a stranger.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

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


async def is_ours(endpoint: Endpoint, timeout_s: float, *, with_key: bool = False) -> bool:
    """Whether /v1/models lists our alias, which is random: a stranger on this port cannot know it. vLLM and SGLang
    guard the list; ``with_key`` tells the key, so ask so only where nobody else can be listening."""
    status, body = await _get(endpoint, "/v1/models", timeout_s, endpoint.api_key if with_key else "")
    if status != 200:
        return False
    try:
        listed = json.loads(body)["data"]
        return any(entry["id"] == endpoint.alias for entry in listed)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def owns_port(group: int, port: int) -> bool | None:
    """Blocking: whether the socket that listens on this loopback port belongs to that process group; None where the
    system does not tell. The alias alone is no proof, because other users can read command lines."""
    try:
        inodes = set(_listening(Path("/proc/net/tcp").read_text(), port))
        return bool(inodes & set(_sockets(group))) if inodes else None
    except (OSError, ValueError, IndexError):
        return None


def _listening(table: str, port: int) -> Iterator[str]:
    for row in table.splitlines()[1:]:
        fields = row.split()
        address, _, number = fields[1].partition(":")
        if fields[3] == "0A" and int(number, 16) == port and address in ("0100007F", "00000000"):
            yield f"socket:[{fields[9]}]"


def _sockets(group: int) -> Iterator[str]:
    """What the members of a process group have open."""
    for folder in Path("/proc").iterdir():
        # The pid is the process's own business: it may end while we look.
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and os.getpgid(int(folder.name)) == group:
                for descriptor in (folder / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        yield str(descriptor.readlink())


async def _get(endpoint: Endpoint, path: str, timeout_s: float, key: str = "") -> tuple[int, bytes]:
    """(status, body); status 0 when there is no HTTP answer in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(endpoint, path, key)
    except (OSError, TimeoutError, ValueError, IndexError):
        return 0, b""


async def _exchange(endpoint: Endpoint, path: str, key: str = "") -> tuple[int, bytes]:
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {endpoint.host}:{endpoint.port}\r\n{authorization}"
            "Connection: close\r\n\r\n".encode()
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
