"""Decides what of a foreign text may stand in an error: no credentials of addresses, no bearer values, bounded."""

from __future__ import annotations

import re

LIMIT = 600
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(https?://[^\s?'\"<>]+)\?[^\s'\"<>]*")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",]+")
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}\b")


def redact(text: str) -> str:
    """One printable line of at most ``LIMIT`` characters, its end kept (that is where tools say what went wrong)."""
    text = _USERINFO.sub("[REDACTED]@", text)
    text = _QUERY.sub(r"\1?[REDACTED]", text)
    text = _BEARER.sub(r"\1 [REDACTED]", text)
    text = _HUB_TOKEN.sub("[REDACTED]", text)
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= LIMIT else f"…{line[-LIMIT:]}"
