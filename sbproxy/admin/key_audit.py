"""Writes one ``key_audit`` line for every change of a key or credential: who, what, and the fields that differ.

The views that it compares hold no secret (contracts section 38).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

import orjson
from aiohttp import web

from sbproxy.admin.gate import PRINCIPAL

KEY_AUDIT = logging.getLogger("key_audit")
Operation = Literal["create", "update", "delete", "revoke", "block", "unblock", "rotate"]
_ALWAYS_DIFFERENT = frozenset({"updated_at", "policy_digest"})


def key_audit(
    request: web.Request,
    op: Operation,
    resource: Literal["key", "credential"],
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> None:
    """``before`` and ``after`` are views; one of them is there."""
    shown = after or before or {}
    KEY_AUDIT.info(
        "key audit",
        extra={
            "op": op,
            "resource": resource,
            "id": shown.get("key_id") or shown.get("id"),
            "actor": request[PRINCIPAL].username,
            "tenant_id": shown.get("tenant_id"),
            "before": _text(before, after),
            "after": _text(after, before),
        },
    )


def _text(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> str | None:
    """What ``one`` says that ``other`` does not; all of it where there is no other."""
    if one is None:
        return None
    if other is None or one is other:
        return orjson.dumps(dict(one)).decode()
    differing = {
        name: value
        for name, value in one.items()
        if name not in _ALWAYS_DIFFERENT and (name not in other or other[name] != value)
    }
    return orjson.dumps(differing).decode()
