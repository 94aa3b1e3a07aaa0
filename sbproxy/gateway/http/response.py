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
    """``length`` is the body's size in bytes, CHUNKED or UNTIL_CLOSE; a status below 200 is an interim answer."""

    __slots__ = ("headers", "keep_alive", "length", "status")

    def __init__(self, status: int, keep_alive: bool, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self.keep_alive = keep_alive
        self.headers = headers
        self.length = UNTIL_CLOSE

    def frame(self, head_only: bool) -> str | None:
        """Find out the framing from the fields; the reason when they contradict themselves."""
        for name, value in self.headers:
            if name == b"content-length":
                if self.length != UNTIL_CLOSE or not value.isdigit() or len(value) > _LENGTH_DIGITS:
                    return "its Content-Length is malformed or not alone"
                self.length = int(value)
            elif name == b"transfer-encoding":
                if self.length != UNTIL_CLOSE or value.lower() != b"chunked":
                    return "its Transfer-Encoding is not chunked or not alone"
                self.length = CHUNKED
            elif name == b"connection":
                options = value.lower()
                if b"close" in options:
                    self.keep_alive = False
                elif b"keep-alive" in options:
                    self.keep_alive = True
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
    headers = split_fields(raw)
    if len(headers) > _HEADER_COUNT:
        return "its head has too many fields"
    head = ResponseHead(int(match[2]), match[1] == b"1", headers)
    return head.frame(head_only) or head
