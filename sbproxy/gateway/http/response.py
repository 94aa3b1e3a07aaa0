"""Reads one whole head of an upstream's answer: status, fields, and how its body is framed, or what is wrong with it.

The syntax of the fields is httptools' to check, as for requests; the framing is decided here, and more strictly.
"""

from __future__ import annotations

import re

import httptools

from sbproxy.gateway.http.fields import split_fields

CHUNKED, UNTIL_CLOSE = -1, -2
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [\t -~\x80-\xff]*)?\r\n")
_NO_BODY = frozenset((204, 304))
_HEADER_COUNT = 200
_LENGTH_DIGITS = 18
_MUTE = object()


class ResponseHead:
    """``length`` is the body's size in bytes, CHUNKED or UNTIL_CLOSE; a status below 200 is an interim answer.

    Fields are looked for when they are asked for: an answer has many, and few of them are ever wanted.
    """

    __slots__ = ("_fields", "_lowered", "_raw", "keep_alive", "length", "status")

    def __init__(self, status: int, keep_alive: bool, raw: bytes) -> None:
        self.status = status
        self.keep_alive = keep_alive
        self.length = UNTIL_CLOSE
        self._raw = raw
        self._lowered = raw.lower()
        self._fields: list[tuple[bytes, bytes]] | None = None

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        """All fields, names in lower case."""
        if self._fields is None:
            self._fields = split_fields(self._raw)
        return self._fields

    def field(self, name: bytes) -> bytes | None:
        """The first value of a lower-case name."""
        mark = b"\r\n%b:" % name
        at = self._lowered.find(mark)
        if at < 0:
            return None
        at += len(mark)
        return self._raw[at : self._raw.find(b"\r\n", at)].strip(b" \t")

    def frame(self, head_only: bool) -> str | None:
        """Find out the framing from the fields; the reason when they contradict themselves."""
        lowered = self._lowered
        length = self.field(b"content-length")
        if length is not None:
            if not length.isdigit() or len(length) > _LENGTH_DIGITS or lowered.count(b"\r\ncontent-length:") > 1:
                return "its Content-Length is malformed or not alone"
            self.length = int(length)
        coding = self.field(b"transfer-encoding")
        if coding is not None:
            if length is not None or coding.lower() != b"chunked" or lowered.count(b"\r\ntransfer-encoding:") > 1:
                return "its Transfer-Encoding is not chunked or not alone"
            self.length = CHUNKED
        connection = self.field(b"connection")
        if connection is not None:
            options = connection.lower()
            self.keep_alive = b"close" not in options and (self.keep_alive or b"keep-alive" in options)
        if head_only or self.status in _NO_BODY:
            self.length = 0
        return None


def read_response_head(raw: bytes, head_only: bool) -> ResponseHead | str:
    """The head in ``raw``, which ends with the empty line; a reason when it is not fit to be believed."""
    match = _STATUS_LINE.match(raw)
    if match is None:
        return "its status line is malformed"
    try:
        httptools.HttpResponseParser(_MUTE).feed_data(raw)
    except httptools.HttpParserUpgrade:
        return "it switches to another protocol unasked"
    except httptools.HttpParserError as error:
        return f"its head is malformed ({error})"
    if raw.count(b"\n") > _HEADER_COUNT:
        return "its head has too many fields"
    head = ResponseHead(int(match[2]), match[1] == b"1", raw)
    return head.frame(head_only) or head
