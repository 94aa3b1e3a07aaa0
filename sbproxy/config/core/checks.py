"""Single-value rules used by the field types; each raises ValueError with the reason."""

from __future__ import annotations

import ipaddress
import re

_IDENTIFIER = re.compile(r"[A-Za-z0-9._-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


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
