"""Reads one whole head of an upstream's answer: status, fields, and how its body is framed, or what is wrong with it.

As for requests, httptools judges the syntax of fields that are new; the framing is decided here, and more strictly.
"""

from __future__ import annotations

import re
from typing import final

import httptools

from sbproxy.gateway.http.fields import Field, remembered, split_fields

CHUNKED, UNTIL_CLOSE = -1, -2
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [\t -~\x80-\xff]*)?")
_NO_BODY = frozenset((204, 304))
_HEADER_COUNT = 200
_LENGTH_DIGITS = 18
_LINES_KEPT = 64
_HEADS_KEPT = 256
_HEAD_BYTES_KEPT = 1024
_MUTE = object()
_lines: dict[bytes, tuple[int, int]] = {}


@final
class ResponseHead:
    """``length`` is the body's size in bytes, CHUNKED or UNTIL_CLOSE; a status below 200 is an interim answer.

    ``fields`` holds the first value of each name.
    """

    __slots__ = ("fields", "headers", "keep_alive", "length", "status")

    def __init__(self, status: int, minor: int, headers: list[Field]) -> None:
        self.status = status
        self.keep_alive = minor == 1
        self.headers = headers
        self.fields = dict(headers)
        self.length = UNTIL_CLOSE

    def frame(self, head_only: bool) -> str | None:
        """Find out the framing from the fields; the reason when they contradict themselves."""
        fields = self.fields
        if len(fields) != len(self.headers):
            fields = self.fields = dict(reversed(self.headers))
            seen = [name for name, _ in self.headers]
            if seen.count(b"content-length") > 1 or seen.count(b"transfer-encoding") > 1:
                return "it states its framing more than once"
        get = fields.get
        length = get(b"content-length")
        if b"transfer-encoding" in fields:
            if length is not None or fields[b"transfer-encoding"].lower() != b"chunked":
                return "its Transfer-Encoding is not chunked or not alone"
            self.length = CHUNKED
        elif length is not None:
            if not length.isdigit() or len(length) > _LENGTH_DIGITS:
                return "its Content-Length is malformed"
            self.length = int(length)
        connection = get(b"connection")
        if connection is not None:
            options = connection.lower()
            self.keep_alive = b"close" not in options and (self.keep_alive or b"keep-alive" in options)
        status = self.status
        if status == 101:
            return "it switches to another protocol unasked"
        if head_only or status in _NO_BODY:
            self.length = 0
        return None


_heads: dict[bytes, ResponseHead] = {}


def read_response_head(raw: bytes, head_only: bool) -> ResponseHead | str:
    """The head in ``raw``, which ends with the empty line; a reason when it is not fit to be believed.

    An engine's heads, of streams above all, are the same to the byte time and again, and a head never changes.
    """
    if not head_only:
        known = _heads.get(raw)
        if known is not None:
            return known
    lines = raw[:-4].split(b"\r\n")
    first = lines.pop(0)
    line = _lines.get(first) or _read_line(first)
    if line is None:
        return "its status line is malformed"
    if len(lines) > _HEADER_COUNT:
        return "its head has too many fields"
    fields = remembered(lines)
    repeats = fields is not None  # which also says that nothing in it must not be kept
    if fields is None:
        fault = _judge(raw)
        if fault is not None:
            return fault
        fields = split_fields(lines, sound=True)
    head = ResponseHead(*line, fields)
    fault = head.frame(head_only)
    if fault is not None:
        return fault
    if repeats and not head_only and len(raw) <= _HEAD_BYTES_KEPT:
        if len(_heads) >= _HEADS_KEPT:
            _heads.clear()
        _heads[raw] = head
    return head


def _judge(raw: bytes) -> str | None:
    try:
        httptools.HttpResponseParser(_MUTE).feed_data(raw)
    except httptools.HttpParserUpgrade:
        return None  # told by the status
    except httptools.HttpParserError as error:
        return f"its head is malformed ({error})"
    return None


def _read_line(line: bytes) -> tuple[int, int] | None:
    """Status and minor version."""
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        return None
    if len(_lines) >= _LINES_KEPT:
        _lines.clear()
    read = _lines[line] = (int(match[2]), int(match[1]))
    return read
