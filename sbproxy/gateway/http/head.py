"""Reads one whole request head: what it asks for and how its body is framed, or why it is refused.

httptools (llhttp) judges the syntax of every field line that was not found sound before, mute: a callback for each
would cost more than splitting them. The request line, the framing and ``Host``, where it is lenient, are decided here,
and not again for a head that differs from the last one of its connection in nothing but the body's length.
"""

from __future__ import annotations

import re

import httptools

from sbproxy.gateway.exchange import Request
from sbproxy.gateway.http import refusal
from sbproxy.gateway.http.fields import Field, remembered, split_fields
from sbproxy.gateway.http.limits import ServerLimits
from sbproxy.gateway.http.refusal import Refusal, malformed

METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")}
CHUNKED = -1
_MINORS = {b"HTTP/1.1": 1, b"HTTP/1.0": 0}
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(rb"/[!-~]*")
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%\-]*)(?::[0-9]*)?")
# Of these a second value would be another opinion about what the request is.
_ONCE = (b"Host", b"Content-Length", b"Transfer-Encoding", b"Expect", b"Content-Type", b"Content-Encoding")
_LENGTH_DIGITS = 18
_LINES_KEPT = 256
_LINE_BYTES_KEPT = 256
_HEAD_BYTES_KEPT = 2048
_LENGTH_NAME = b"\r\nContent-Length: "
_MUTE = object()
_RequestLine = tuple[str, str, str, int]
_lines: dict[bytes, _RequestLine] = {}
_hosts: dict[bytes, str] = {}


class WireRequest(Request):
    """A request and what only the wire wants to know of it.

    ``length`` is the body's announced size in bytes, or CHUNKED; it is not among the headers. ``expects`` means
    100-continue; ``minor`` is the version's last digit. ``body``, ``client_ip`` and ``received_at`` are filled in when
    the body is complete.
    """

    __slots__ = ("_fields", "expects", "keep_alive", "length", "minor")

    headers: list[Field]

    def __init__(self, line: _RequestLine, headers: list[Field]) -> None:
        self.method, self.path, self.query, minor = line
        self.headers = headers
        self.host = ""
        self.length = 0
        self.expects = False
        self.minor = minor
        self.keep_alive = minor == 1

    def frame(self) -> Refusal | None:
        """Settle host, framing and connection options from the fields, or say which rule these break together."""
        fields = self._fields = dict(self.headers)
        if len(fields) != len(self.headers):
            fault = self._find_repeated()
            if fault is not None:
                return fault
            fields = self._fields = dict(reversed(self.headers))
        get = fields.get
        host = get(b"host")
        if host:
            self.host = _hosts.get(host) or _learn_host(host)
            if not self.host:
                return malformed("The request's Host header field is not a host name.")
        elif host is None and self.minor:
            return malformed("The request has no Host header field.")
        length = fields.pop(b"content-length", None)
        if length is not None:
            self.headers.remove((b"content-length", length))
        coding = get(b"transfer-encoding")
        if coding is not None:
            return self._frame_chunked(coding.lower(), length)
        if length is not None:
            if not length.isdigit():
                return malformed("The request's Content-Length is not a number.")
            if len(length) > _LENGTH_DIGITS:
                return refusal.LENGTH_TOO_LARGE
            self.length = int(length)
        if b"connection" in fields:
            self._note_connection()
        if b"expect" in fields:
            return self._note_expectation(fields[b"expect"])
        return None

    def header(self, name: bytes) -> bytes | None:
        return self._fields.get(name)

    def again(self, length: int) -> WireRequest:
        """A request with the same head but for the size of its body."""
        request = WireRequest.__new__(WireRequest)
        request.method = self.method
        request.path = self.path
        request.query = self.query
        request.host = self.host
        request.headers = self.headers
        request._fields = self._fields
        request.keep_alive = self.keep_alive
        request.minor = self.minor
        request.expects = False
        request.length = length
        return request

    def _frame_chunked(self, coding: bytes, length: bytes | None) -> Refusal | None:
        if length is not None:
            return malformed("The request has both Content-Length and Transfer-Encoding.")
        if not self.minor:
            return malformed("Transfer-Encoding is not part of HTTP/1.0.")
        codings = [part.strip() for part in coding.split(b",")]
        if codings != [b"chunked"]:
            known = all(part in (b"gzip", b"deflate", b"compress") for part in codings[:-1])
            if known and codings[-1] == b"chunked":
                return refusal.UNKNOWN_CODING
            return malformed("The request's Transfer-Encoding is not chunked.")
        self.length = CHUNKED
        self._note_connection()
        expected = self.header(b"expect")
        return None if expected is None else self._note_expectation(expected)

    def _note_connection(self) -> None:
        values = b",".join(value for name, value in self.headers if name == b"connection")
        options = {option.strip() for option in values.lower().split(b",")}
        self.keep_alive = b"close" not in options and (self.minor == 1 or b"keep-alive" in options)

    def _note_expectation(self, expected: bytes) -> Refusal | None:
        if expected.lower() != b"100-continue":
            return refusal.EXPECTATION_FAILED
        # An HTTP/1.0 client cannot understand an interim answer; RFC 9110 has its expectation ignored.
        self.expects = self.minor == 1
        return None

    def _find_repeated(self) -> Refusal | None:
        seen = [name for name, _ in self.headers]
        for name in _ONCE:
            if seen.count(name.lower()) > 1:
                return malformed(f"The request has more than one {name.decode()} header field.")
        return None


def _learn_host(value: bytes) -> str:
    match = _HOST.fullmatch(value)
    if match is None:
        return ""
    if len(_hosts) >= _LINES_KEPT:
        _hosts.clear()
    host = _hosts[value] = match[1].decode("ascii").lower()
    return host


class HeadMemory:
    """Reads the heads of one connection: whoever keeps it open sends one head again and again, but for a length.

    It keeps the last head until the next or the connection's end, a secret in it included: both are that client's.
    """

    __slots__ = ("_after", "_before", "_last", "_limits")

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._last: WireRequest | None = None
        self._before = self._after = b""

    def read(self, raw: bytes) -> WireRequest | Refusal:
        """As :func:`read_head`."""
        last = self._last
        if last is not None and raw.startswith(self._before) and raw.endswith(self._after):
            digits = raw[len(self._before) : -len(self._after)]
            if digits.isdigit() and len(digits) <= _LENGTH_DIGITS:
                return last.again(int(digits))
        return self._read_new(raw)

    def _read_new(self, raw: bytes) -> WireRequest | Refusal:
        head = read_head(raw, self._limits)
        before, name, rest = raw.partition(_LENGTH_NAME)
        if type(head) is Refusal or not name or head.expects or len(raw) > _HEAD_BYTES_KEPT:
            self._last = None
        else:
            # The head was found sound, so this line is the only one of its name, and nothing else depends on it.
            self._last = head
            self._before = before + name
            self._after = rest.lstrip(b"0123456789")
        return head


def read_head(raw: bytes, limits: ServerLimits) -> WireRequest | Refusal:
    """The head in ``raw``, which starts at the request line and ends with the empty line."""
    lines = raw[:-4].split(b"\r\n")
    first = lines.pop(0)
    line = _lines.get(first) or _read_line(first, limits)
    if type(line) is Refusal:
        return line
    if len(lines) > limits.header_count:
        return refusal.TOO_MANY_HEADERS
    rejected = None
    fields = remembered(lines)
    if fields is None:
        rejected = _judge(raw)
        fields = split_fields(lines, sound=rejected is None)
    request = WireRequest(line, fields)
    # Which of two lengths is too many is better told here than by the parser.
    return request.frame() or rejected or request


def _judge(raw: bytes) -> Refusal | None:
    try:
        httptools.HttpRequestParser(_MUTE).feed_data(raw)
    except httptools.HttpParserUpgrade:
        return None  # an offer of another protocol may be ignored (RFC 9110 7.8); the request itself is whole
    except httptools.HttpParserError as error:
        return malformed(f"The request's header fields are malformed: {error}.")
    return None


def _read_line(line: bytes, limits: ServerLimits) -> _RequestLine | Refusal:
    parts = line.split(b" ")
    if (
        len(parts) != 3
        or parts[0] not in METHODS
        or parts[2] not in _MINORS
        or len(parts[1]) > limits.target_bytes
        or _TARGET.fullmatch(parts[1]) is None
    ):
        return refuse_line(line, limits)
    path, _, query = parts[1].decode("ascii").partition("?")
    read = (METHODS[parts[0]], path, query, _MINORS[parts[2]])
    if len(line) <= _LINE_BYTES_KEPT:
        if len(_lines) >= _LINES_KEPT:
            _lines.clear()
        _lines[line] = read
    return read


def refuse_line(line: bytes, limits: ServerLimits) -> Refusal:
    """Which rule a request line breaks; called only when it breaks one."""
    parts = line.split(b" ")
    if len(parts) != 3 or _TOKEN.fullmatch(parts[0]) is None or not parts[1] or not line.isascii():
        return malformed("The request line is malformed.")
    if len(parts[1]) > limits.target_bytes:
        return refusal.TARGET_TOO_LONG
    if re.fullmatch(rb"HTTP/[0-9]\.[0-9]", parts[2]) is None:
        return malformed("The request line does not end with an HTTP version.")
    if parts[2] not in _MINORS:
        return refusal.UNKNOWN_VERSION
    if parts[0] not in METHODS:
        return refusal.UNKNOWN_METHOD
    return malformed("The request target is not a path.")


def refuse_early(partial: bytes, limits: ServerLimits) -> Refusal | None:
    """What can be said of a head that has not ended yet: too long already, or never to become a head."""
    line_end = partial.find(b"\n")
    line = partial if line_end < 0 else partial[:line_end]
    if b"\0" in partial or partial.count(b"\n") != partial.count(b"\r\n"):
        return malformed("The request's lines must end with CR LF.")
    if line_end >= 0:
        parts = line[:-1].split(b" ")
        if len(parts) != 3 or parts[0] not in METHODS or parts[2] not in _MINORS:
            return refuse_line(line[:-1], limits)
    if len(line) > limits.target_bytes + 64:
        return refusal.TARGET_TOO_LONG
    if len(partial) > limits.head_bytes:
        return refusal.HEAD_TOO_LARGE
    return None
