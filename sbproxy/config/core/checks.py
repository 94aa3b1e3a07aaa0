"""Single-value rules used by the field types; each raises ValueError with the reason."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from pydantic import ValidationInfo

from sbproxy.config.core.paths import absolute

_IDENTIFIER = re.compile(r"[A-Za-z0-9._-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def identifier(value: str) -> str:
    if not _IDENTIFIER.fullmatch(value):
        raise ValueError("may hold only letters, digits, '.', '_' and '-'")
    return value


def ip_literal(value: str) -> str:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        raise ValueError("must be an IP address literal, not a host name") from None
    return value


def sha256_hex(value: str) -> str:
    if not _SHA256.fullmatch(value):
        raise ValueError("must be 64 lower-case hex characters (a SHA-256)")
    return value


def printable(value: str) -> str:
    if _CONTROL.search(value):
        raise ValueError("must not hold control characters")
    return value


def file_path(value: str, info: ValidationInfo) -> str:
    """A path as written; absolute once a ``directory`` (that of sb.yml) is given as validation context."""
    printable(value)
    if len(value.encode()) > 4096:
        raise ValueError("must be at most 4096 bytes")
    context: Any = info.context
    return absolute(value, context["directory"]) if context else value


def absolute_path(value: str) -> str:
    printable(value)
    if not value.startswith("/"):
        raise ValueError("must be an absolute path ('~' is not expanded; use ${HOME})")
    return value
