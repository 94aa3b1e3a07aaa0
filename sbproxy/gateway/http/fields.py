"""Header fields: split from the lines of a head, and written so that none can break out of its line.

The same lines come and go with nearly every message, so both directions remember a bounded number of sound ones.
"""

from __future__ import annotations

import re
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import cast

from sbproxy.gateway.exchange import HeaderPairs

Field = tuple[bytes, bytes]
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
# Not remembered: secrets, which should not outlive their request, and what never comes twice.
_PASSING = frozenset(
    (
        b"api-key",
        b"authorization",
        b"cookie",
        b"proxy-authorization",
        b"set-cookie",
        b"traceparent",
        b"x-api-key",
        b"x-request-id",
    )
)
_LINES_KEPT = 1024
_LINE_BYTES_KEPT = 256
_read: dict[bytes, Field] = {}
_written: dict[Field, bytes] = {}


def remembered(lines: list[bytes]) -> list[Field] | None:
    """Names and values of field lines, if every one of them was found sound before; else None."""
    fields = list(map(_read.get, lines))
    return cast("list[Field]", fields) if all(fields) else None


def split_fields(lines: list[bytes], *, sound: bool) -> list[Field]:
    """Lower-case names, and values; new lines are remembered if they are ``sound``."""
    get = _read.get
    return [get(line) or _split(line, sound) for line in lines]


def _split(line: bytes, sound: bool) -> Field:
    name, _, value = line.partition(b":")
    field = (name.lower(), value.strip(b" \t"))
    if sound and len(line) <= _LINE_BYTES_KEPT and field[0] not in _PASSING:
        if len(_read) >= _LINES_KEPT:
            _read.clear()
        _read[line] = field
    return field


def message_head(first: bytes, headers: HeaderPairs, last: bytes) -> bytes:
    """``first``, the fields and ``last`` as one head.

    ValueError for a reserved or malformed name, and for a value with CR, LF or NUL.
    """
    lines = list(map(_written.get, headers))
    if not all(lines):
        lines = [_written.get(field) or _write(field) for field in headers]
    return b"".join((first, *cast("list[bytes]", lines), last))


def _write(field: Field) -> bytes:
    name, value = field
    if name in _RESERVED:
        raise ValueError(f"the header {name.decode('latin-1')} is written by the wire itself")
    if _TOKEN.fullmatch(name) is None:
        raise ValueError("a header name is not a token")
    if b"\r" in value or b"\n" in value or b"\0" in value:
        raise ValueError("a header value holds CR, LF or NUL")
    line = b"%b: %b\r\n" % field
    if len(line) <= _LINE_BYTES_KEPT and name not in _PASSING:
        if len(_written) >= _LINES_KEPT:
            _written.clear()
        _written[field] = line
    return line


class StatusLines:
    """The first two lines of an answer (status and Date), kept for each status until they are forgotten."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[int, bytes] = {}

    def get(self, status: int) -> bytes:
        """Two lines with their line ends; ValueError for a status that is not final (200 to 599)."""
        return self._lines.get(status) or self._make(status)

    def forget(self) -> None:
        """Let the date move on. To be called at least once a second."""
        self._lines.clear()

    def _make(self, status: int) -> bytes:
        if not 200 <= status <= 599:
            raise ValueError(f"{status} is not a final status")
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = ""
        lines = f"HTTP/1.1 {status} {phrase}\r\nDate: {formatdate(time(), usegmt=True)}\r\n".encode("ascii")
        self._lines[status] = lines
        return lines
