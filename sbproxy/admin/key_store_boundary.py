"""What the admin API says of refusals of the key plane; where the store is and what it said stays in the log."""

from __future__ import annotations

import functools
import logging

from aiohttp import web
from aiohttp.typedefs import Handler

from sbproxy.admin.replies import refuse
from sbproxy.errors.keys import KeyMaterialUnusable, KeyRevisionConflict, KeyStoreFailed, KeyTerminal, RotationRefused

LOG = logging.getLogger("sbproxy.admin")


def key_store_boundary(handler: Handler) -> Handler:
    """Everything without extra fields goes on to the boundary of all routes."""

    @functools.wraps(handler)
    async def bounded(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except KeyRevisionConflict as error:
            extra = {"key_id": error.key_id, "expected_revision": error.expected_revision}
            extra["current_revision"] = error.current_revision
            return refuse(409, str(error), code=error.code, extra=extra)
        except (KeyTerminal, RotationRefused) as error:
            extra = {"key_id": error.key_id, "current_revision": error.current_revision}
            return refuse(409, str(error), code=error.code, extra=extra)
        except (KeyStoreFailed, KeyMaterialUnusable) as error:
            LOG.error("%s", error)
            return refuse(500, "the key store cannot be used; inspect server logs", code=error.code)

    return bounded
