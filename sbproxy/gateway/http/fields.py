"""Header fields: split from the lines of a head, and written so that none can break out of its line.

The same lines come and go with nearly every message, so both directions remember a bounded number of sound ones.
"""

from __future__ import annotations

import re
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import TYPE_CHECKING, cast

from sbproxy.gateway.exchange import HeaderPairs

if TYPE_CHECKING:
    from collections.abc import Callable

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
_sound_names: set[bytes] = set()
# Bound once, and typed as if nothing were ever missing: a cast for each message would be a call for each message.
_find_read = cast("Callable[[bytes], Field]", _read.get)
_find_written = cast("Callable[[Field], bytes]", _written.get)


def remembered(lines: list[bytes]) -> list[Field] | None:
    """Names and values of field lines, if every one of them was found sound before; else None."""
    fields = list(map(_find_read, lines))
    return fields if all(fields) else None


def split_fields(lines: list[bytes], *, sound: bool) -> list[Field]:
    """Lower-case names, and values; new lines are remembered if they are ``sound``."""
    return [_read.get(line) or _split(line, sound) for line in lines]


def _split(line: bytes, sound: bool) -> Field:
    name, _, value = line.partition(b":")
    field = (name.lower(), value.strip(b" \t"))
    if sound and len(line) <= _LINE_BYTES_KEPT and field[0] not in _PASSING:
        if len(_read) >= _LINES_KEPT:
            _read.clear()
        _read[line] = field
    return field


def field_lines(headers: HeaderPairs) -> list[bytes]:
    """The fields as lines with their line ends.

    ValueError for a reserved or malformed name, and for a value with CR, LF or NUL.
    """
    lines = list(map(_find_written, headers))
    while not all(lines):  # mostly once: for the request id
        at = lines.index(None)  # type: ignore[arg-type]
        lines[at] = _write(headers[at])
    return lines


def _write(field: Field) -> bytes:
    name, value = field
    if name not in _sound_names:
        _check_name(name)
    # Request ids, nearly all of what is new in an answer, need no search for the bytes that end a line.
    if not value.isalnum() and (b"\r" in value or b"\n" in value or b"\0" in value):
        raise ValueError("a header value holds CR, LF or NUL")
    line = b"%b: %b\r\n" % field
    if name not in _PASSING and len(line) <= _LINE_BYTES_KEPT:
        if len(_written) >= _LINES_KEPT:
            _written.clear()
        _written[field] = line
    return line


def _check_name(name: bytes) -> None:
    if name in _RESERVED:
        raise ValueError(f"the header {name.decode('latin-1')} is written by the wire itself")
    if _TOKEN.fullmatch(name) is None:
        raise ValueError("a header name is not a token")
    if len(_sound_names) >= _LINES_KEPT:
        _sound_names.clear()
    _sound_names.add(name)


class StatusLines(dict[int, bytes]):
    """The first two lines of an answer (status and Date) by status, with their line ends, made when they are missing.

    ``clear`` it at least once a second to let the date move on. ValueError for a status that is not final (200 to 599).
    """

    def __missing__(self, status: int) -> bytes:
        if not 200 <= status <= 599:
            raise ValueError(f"{status} is not a final status")
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = ""
        lines = f"HTTP/1.1 {status} {phrase}\r\nDate: {formatdate(time(), usegmt=True)}\r\n".encode("ascii")
        self[status] = lines
        return lines
