"""``GET /api/requests`` and its stream (document 2, "Read routes")."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from sbproxy.admin import views
from sbproxy.admin.event_stream import EventStreams, Item, StreamEvent, StreamGap, last_event_id
from sbproxy.admin.gate import PRINCIPAL
from sbproxy.admin.ports import AdminDeps
from sbproxy.api.control import RequestEntry
from sbproxy.observe.core.record import RequestRecord
from sbproxy.observe.core.request_filter import parse_filter
from sbproxy.observe.request_log import Gap


class RequestRoutes:
    def __init__(self, deps: AdminDeps, streams: EventStreams) -> None:
        self._log = deps.requests
        self._streams = streams

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/requests", self.page),
            web.get("/api/requests/stream", self.stream, allow_head=False),
        ]

    async def page(self, request: web.Request) -> web.Response:
        """Newest first."""
        records = self._log.page(parse_filter(request.query.items(), self._log.max_entries))
        # A million rows are allowed; the loop serves requests meanwhile.
        body = await asyncio.to_thread(_array, records)
        return web.Response(body=body, content_type="application/json")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Takes no filters: a reader filters for itself."""
        return await self._streams.serve(request, request[PRINCIPAL].username, self._items(last_event_id(request)))

    async def _items(self, after: int | None) -> AsyncIterator[Item]:
        follower = self._log.follow(after)
        try:
            async for item in follower:
                if isinstance(item, Gap):
                    yield StreamGap(item.first, item.last)
                else:
                    yield StreamEvent(item.sequence, _entry(item.record))
        finally:
            follower.close()


def _array(records: list[RequestRecord]) -> bytes:
    return b"[" + b",".join(_entry(record) for record in records) + b"]"


def _entry(record: RequestRecord) -> bytes:
    entry: RequestEntry = views.request_entry(record)
    return entry.model_dump_json(exclude_none=True).encode()
