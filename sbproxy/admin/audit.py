"""Writes one line for every state-changing request and every failed login; never a body, never a header."""

from __future__ import annotations

import logging

from aiohttp import web

from sbproxy.observe.core.scrub import scrub

AUDIT = logging.getLogger("sbproxy.admin.audit")


def audit(request: web.Request, operator: str, role: str, outcome: str, **detail: str | int | None) -> None:
    """``operator`` must be a known name or "-": what an unknown caller typed may well be a password.

    ``detail``: what a route of its own adds, under the names of document 1.
    """
    AUDIT.info(
        "admin action",
        extra={
            **detail,
            "operator": operator,
            "role": role,
            "method": scrub(request.method, 16),
            "route": scrub(request.path, 256),
            "outcome": outcome,
            "client": request.remote or "-",
        },
    )
