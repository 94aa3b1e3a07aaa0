"""Turns whatever a handler raises into the error envelope of document 2; nothing internal leaves with it."""

from __future__ import annotations

import logging
import secrets

from aiohttp import web
from aiohttp.typedefs import Handler

from sbproxy.admin.authentication import TooManyFailures, too_many_requests
from sbproxy.admin.replies import refuse, reply_json, too_large
from sbproxy.admin.statuses import reason_of, status_of
from sbproxy.errors import SbproxyError

LOG = logging.getLogger("sbproxy.admin")
STREAMING: web.RequestKey[web.StreamResponse] = web.RequestKey("streaming", web.StreamResponse)
"""Set once the head of an event stream is out: from then on no other answer can be given."""


@web.middleware
async def error_boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge:
        return too_large()
    except TooManyFailures as refused:
        return too_many_requests(refused.retry_after_s)
    except web.HTTPMethodNotAllowed as wrong:
        return refuse(405, "Method Not Allowed", headers={"Allow": wrong.headers["Allow"]})
    except web.HTTPException as other:
        return reply_json({"error": other.reason}, other.status)
    except SbproxyError as error:
        if request.get(STREAMING) is None:
            return refuse(status_of(error), str(error), code=reason_of(error))
        return _broken_stream(request, error)
    except Exception as error:
        if request.get(STREAMING) is not None:
            return _broken_stream(request, error)
        request_id = secrets.token_hex(8)
        LOG.exception("admin request failed", extra={"request_id": request_id, "route": request.path[:256]})
        return refuse(500, "internal error", extra={"request_id": request_id})


def _broken_stream(request: web.Request, error: Exception) -> web.StreamResponse:
    LOG.error("event stream ended by an error", exc_info=error)
    if request.transport is not None:
        request.transport.abort()
    return request[STREAMING]
