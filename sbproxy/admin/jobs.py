"""``/admin/model-host/jobs``: list, detail, cancel, the stream of one job and that of all (contracts section 18)."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from dataclasses import replace
from typing import cast

from aiohttp import web

from sbproxy.admin import views
from sbproxy.admin.event_stream import EventStreams, Item, StreamEvent, StreamGap, last_event_id
from sbproxy.admin.gate import PRINCIPAL
from sbproxy.admin.model_host import PREFIX
from sbproxy.admin.ports import AdminDeps
from sbproxy.admin.replies import refuse, reply
from sbproxy.api.model_host import JobAnswer, JobsAnswer
from sbproxy.errors.admin import InvalidBody, InvalidJobId
from sbproxy.errors.modelhost import JobNotCancellable, JobStoreUnusable, UnknownJob
from sbproxy.errors.observe import InvalidParameter, UnknownParameter
from sbproxy.modelhost.core.jobs import TERMINAL, JobId, JobRecord
from sbproxy.modelhost.job_feed import Gap, JobEvent

LOG = logging.getLogger("sbproxy.admin")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


class JobRoutes:
    def __init__(self, deps: AdminDeps, streams: EventStreams) -> None:
        self._jobs = deps.jobs
        self._streams = streams

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(f"{PREFIX}/jobs", self.index),
            # Before the detail route: "stream" is no ULID.
            web.get(f"{PREFIX}/jobs/stream", self.stream_all, allow_head=False),
            web.get(f"{PREFIX}/jobs/{{id}}", self.detail),
            web.get(f"{PREFIX}/jobs/{{id}}/stream", self.stream_one, allow_head=False),
            web.post(f"{PREFIX}/jobs/{{id}}/cancel", self.cancel),
        ]

    async def index(self, request: web.Request) -> web.Response:
        """Oldest first; with ``limit`` only so many of the newest."""
        limit = _limit(request)
        try:
            records = await self._jobs.list()
        except JobStoreUnusable as error:
            return _unreadable(error)
        first = 0 if limit is None else max(0, len(records) - limit)
        return reply(JobsAnswer(jobs=[views.job(record) for record in records[first:]]))

    async def detail(self, request: web.Request) -> web.Response:
        return await _answered(self._jobs.get(_job_id(request)), 200)

    async def cancel(self, request: web.Request) -> web.Response:
        """202 with the job as it stands: it fails as ``cancelled`` soon after, unless it was just done. Asking twice
        is no error. Our own route; the documents name none."""
        job_id = _job_id(request)
        if await request.read():
            raise InvalidBody("cancelling takes no body")
        return await _answered(self._jobs.cancel(job_id), 202)

    async def stream_all(self, request: web.Request) -> web.StreamResponse:
        """What is kept after ``Last-Event-ID``, then every change; ends only with the listener or the reader."""
        return await self._streams.serve(
            request, request[PRINCIPAL].username, self._items(None, last_event_id(request))
        )

    async def stream_one(self, request: web.Request) -> web.StreamResponse:
        """As :meth:`stream_all` for one job, and ends after its terminal state.

        A job that the feed has nothing (more) to say about, because it ended before this process or before the
        reader's last event, is shown from the durable record instead.
        """
        job_id, after = _job_id(request), last_event_id(request)
        try:
            await self._jobs.get(job_id)
        except UnknownJob as error:
            return _unknown(error)
        except JobStoreUnusable as error:
            return _unreadable(error)

        async def finished() -> StreamEvent | None:
            record = await self._jobs.get(job_id)
            return _event(None, record) if record.state in TERMINAL else None

        return await self._streams.serve(request, request[PRINCIPAL].username, self._items(job_id, after), finished)

    async def _items(self, job_id: JobId | None, after: int | None) -> AsyncIterator[Item]:
        async with aclosing(cast("AsyncGenerator[JobEvent | Gap, None]", self._jobs.follow(job_id, after))) as events:
            async for event in events:
                if isinstance(event, Gap):
                    yield StreamGap(event.first, event.last, event.resume)
                else:
                    sent = _event(event.sequence, event.job)
                    yield sent if job_id is not None else replace(sent, last=False)


def _limit(request: web.Request) -> int | None:
    """Raises UnknownParameter or InvalidParameter."""
    for name in request.query:
        if name != "limit":
            raise UnknownParameter(name[:64], ("limit",))
    given = request.query.getall("limit", [])
    if not given:
        return None
    if len(given) > 1:
        raise InvalidParameter("limit", "given once")
    if not (given[0].isascii() and given[0].isdigit() and len(given[0]) <= 16):
        raise InvalidParameter("limit", "a whole number, zero or more")
    return int(given[0])


def _job_id(request: web.Request) -> JobId:
    text = request.match_info["id"]
    if not _ULID.fullmatch(text):
        raise InvalidJobId(text[:64])
    return JobId(text)


async def _answered(asked: Awaitable[JobRecord], status: int) -> web.Response:
    try:
        return reply(JobAnswer(job=views.job(await asked)), status)
    except UnknownJob as error:
        return _unknown(error)
    except JobNotCancellable as error:
        return refuse(409, str(error), code=error.code, extra={"job_id": error.job_id})
    except JobStoreUnusable as error:
        return _unreadable(error)


def _unreadable(error: JobStoreUnusable) -> web.Response:
    # Its text holds a path of the server; that stays in the log.
    LOG.error("%s", error)
    return refuse(502, "the job store cannot be read; inspect server logs", code=error.code)


def _unknown(error: UnknownJob) -> web.Response:
    return refuse(404, str(error), code=error.code, extra={"job_id": error.job_id})


def _event(number: int | None, record: JobRecord) -> StreamEvent:
    return StreamEvent(number, views.job(record).model_dump_json().encode(), last=record.state in TERMINAL)
