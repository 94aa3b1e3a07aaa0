"""Follows an event stream across lost connections, resuming after the last event that arrived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from pydantic import ValidationError

from sbproxy.client.core.feed import RECONNECT_DELAYS_S
from sbproxy.client.core.refusal import mismatch
from sbproxy.client.core.sse import SseEvent, SseOverflow, SseReader
from sbproxy.client.transport import STREAM_SILENCE_S, AdminTransport
from sbproxy.errors.client import DaemonSilent, DaemonUnreachable, ProtocolMismatch

Item = TypeVar("Item")


async def follow(
    transport: AdminTransport,
    path: str,
    decode: Callable[[SseEvent], Item | None],
    *,
    last_event_id: str | None = None,
) -> AsyncGenerator[Item, None]:
    """Yield decoded events until the daemon ends the stream, which is left to the caller to judge.

    A lost connection is opened again with ``Last-Event-ID``; after the waits of RECONNECT_DELAYS_S without one new
    event the last failure is raised. A failure of the very first connection is raised at once.
    """
    tries, connected = 0, False
    while True:
        try:
            reader = SseReader(last_event_id)
            async with aclosing(_events(transport, path, reader)) as events:
                async for event in events:
                    last_event_id, tries, connected = reader.last_event_id, 0, True
                    item = decode(event)
                    if item is not None:
                        yield item
            return
        except ValidationError as error:
            raise mismatch(error, url=transport.url, action=f"GET {path}") from None
        except SseOverflow as error:
            raise ProtocolMismatch(transport.url, f"GET {path}", str(error)) from None
        except (DaemonUnreachable, DaemonSilent):
            if not connected or tries == len(RECONNECT_DELAYS_S):
                raise
            await asyncio.sleep(RECONNECT_DELAYS_S[tries])
            tries += 1


async def _events(transport: AdminTransport, path: str, reader: SseReader) -> AsyncGenerator[SseEvent, None]:
    headers = {"accept": "text/event-stream"}
    if reader.last_event_id is not None:
        headers["last-event-id"] = reader.last_event_id
    async with transport.open("GET", path, headers=headers, silence_s=STREAM_SILENCE_S) as response:
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise ProtocolMismatch(transport.url, f"GET {path}", f"{kind or 'nothing'} instead of an event stream")
        async for chunk in response.aiter_bytes():
            for event in reader.feed(chunk):
                yield event
