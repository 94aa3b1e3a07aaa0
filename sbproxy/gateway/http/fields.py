"""Header fields: split from a sound head, and written so that none can break out of its line."""

from __future__ import annotations

import re
import time
from email.utils import formatdate
from http import HTTPStatus

from sbproxy.gateway.exchange import HeaderPairs

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Framing belongs to this folder: a second opinion about it from a caller would be a smuggling hole.
_RESERVED = frozenset(
    (
        b"connection",
        b"content-length",
        b"date",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_KNOWN_NAMES = 1024
_known: set[bytes] = set()


def split_fields(head: bytes) -> list[tuple[bytes, bytes]]:
    """Names (lower-case) and values of a head whose syntax was checked: first line, fields, empty line, all CR LF."""
    block = head[head.find(b"\r\n") + 2 : -4]
    if not block:
        return []
    fields = []
    for line in block.split(b"\r\n"):
        name, _, value = line.partition(b":")
        fields.append((name.lower(), value.strip(b" \t")))
    return fields


def message_head(first: bytes, first_lines: int, headers: HeaderPairs, last: bytes, last_lines: int) -> bytes:
    """``first``, the fields and ``last`` as one head; the counts are the lines (CR LF) in ``first`` and ``last``.

    ValueError for a reserved or malformed name, and for a value with CR, LF or NUL.
    """
    parts = [first]
    for name, value in headers:
        if name not in _known:
            _learn(name)
        parts += (name, b": ", value, b"\r\n")
    parts.append(last)
    head = b"".join(parts)
    lines = first_lines + len(headers) + last_lines
    if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
        raise ValueError("a header value holds CR, LF or NUL")
    return head


def _learn(name: bytes) -> None:
    if name in _RESERVED:
        raise ValueError(f"the header {name.decode('latin-1')} is written by the wire itself")
    if _TOKEN.fullmatch(name) is None:
        raise ValueError("a header name is not a token")
    if len(_known) >= _KNOWN_NAMES:
        _known.clear()
    _known.add(name)


class StatusLines:
    """The first two lines of an answer (status and Date), made once a second for each status."""

    __slots__ = ("_lines", "_second")

    def __init__(self) -> None:
        self._second = -1
        self._lines: dict[int, bytes] = {}

    def get(self, status: int) -> bytes:
        """Two lines with their line ends; ValueError for a status that is not final (200 to 599)."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._lines.clear()
        lines = self._lines.get(status)
        if lines is None:
            lines = self._lines[status] = self._make(status, second)
        return lines

    @staticmethod
    def _make(status: int, second: int) -> bytes:
        if not 200 <= status <= 599:
            raise ValueError(f"{status} is not a final status")
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = ""
        return f"HTTP/1.1 {status} {phrase}\r\nDate: {formatdate(second, usegmt=True)}\r\n".encode("ascii")
