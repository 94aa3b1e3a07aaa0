"""Reads one whole request head: what it asks for and how its body is framed, or why it is refused.

httptools (llhttp) checks the syntax of the header fields, mute: a callback for each would cost more than splitting what
it found sound. It is lenient about request lines, so the line, the framing fields and ``Host`` are decided here.
"""

from __future__ import annotations

import re

import httptools

from sbproxy.gateway.http import refusal
from sbproxy.gateway.http.fields import split_fields
from sbproxy.gateway.http.limits import ServerLimits
from sbproxy.gateway.http.refusal import Refusal, malformed

METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")}
CHUNKED = -1
_MINORS = {b"HTTP/1.1": 1, b"HTTP/1.0": 0}
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%\-]*)(?::[0-9]*)?")
_LENGTH_DIGITS = 18
_MUTE = object()
_HOSTS_KEPT = 256
_hosts: dict[bytes, str] = {}


class RequestHead:
    """A head that may be answered. ``length`` is the body's size in bytes, or CHUNKED; ``expects`` is 100-continue."""

    __slots__ = ("expects", "headers", "host", "keep_alive", "length", "method", "minor", "target")

    def __init__(self, method: str, target: str, minor: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.method = method
        self.target = target
        self.minor = minor
        self.headers = headers
        self.host = ""
        self.length = 0
        self.expects = False
        self.keep_alive = minor == 1

    def frame(self) -> Refusal | None:
        """Settle host, framing and connection options from the fields, or say which rule these break together."""
        fields = dict(self.headers)
        if len(fields) != len(self.headers):
            fault = self._find_repeated()
            if fault is not None:
                return fault
        get = fields.get
        host = get(b"host")
        if host is None:
            if self.minor:
                return malformed("The request has no Host header field.")
        else:
            self.host = _hosts.get(host) or _learn_host(host)
            if not self.host and host:
                return malformed("The request's Host header field is not a host name.")
        length = get(b"content-length")
        coding = get(b"transfer-encoding")
        if coding is not None:
            if length is not None:
                return malformed("The request has both Content-Length and Transfer-Encoding.")
            self.length = CHUNKED
            if not self.minor or coding.lower() != b"chunked":
                return self._refuse_coding(coding.lower())
        elif length is not None:
            if not length.isdigit():
                return malformed("The request's Content-Length is not a number.")
            if len(length) > _LENGTH_DIGITS:
                return refusal.BODY_TOO_LARGE
            self.length = int(length)
        connection = get(b"connection")
        if connection is not None:
            self._note_connection(connection)
        expected = get(b"expect")
        if expected is not None:
            if expected.lower() != b"100-continue":
                return refusal.EXPECTATION_FAILED
            # An HTTP/1.0 client cannot understand an interim answer; RFC 9110 has its expectation ignored.
            self.expects = self.minor == 1
        return None

    def _find_repeated(self) -> Refusal | None:
        seen = [name for name, _ in self.headers]
        for name, written in ((b"host", "Host"), (b"content-length", "Content-Length"), (b"expect", "Expect")):
            if seen.count(name) > 1:
                return malformed(f"The request has more than one {written} header field.")
        if seen.count(b"transfer-encoding") > 1:
            return malformed("The request has more than one Transfer-Encoding header field.")
        for name, value in self.headers:
            if name == b"connection":
                self._note_connection(value)
        return None

    def _refuse_coding(self, value: bytes) -> Refusal:
        codings = [coding.strip() for coding in value.split(b",")]
        if not self.minor:
            return malformed("Transfer-Encoding is not part of HTTP/1.0.")
        if codings[-1] == b"chunked" and all(coding in (b"gzip", b"deflate", b"compress") for coding in codings[:-1]):
            return refusal.UNKNOWN_CODING
        return malformed("The request's Transfer-Encoding is not chunked.")

    def _note_connection(self, value: bytes) -> None:
        options = {option.strip() for option in value.lower().split(b",")}
        if b"close" in options:
            self.keep_alive = False
        elif self.minor == 0 and b"keep-alive" in options:
            self.keep_alive = True


def _learn_host(value: bytes) -> str:
    match = _HOST.fullmatch(value)
    if match is None:
        return ""
    if len(_hosts) >= _HOSTS_KEPT:
        _hosts.clear()
    host = _hosts[value] = match[1].decode("ascii").lower()
    return host


def read_head(raw: bytes, limits: ServerLimits) -> RequestHead | Refusal:
    """The head in ``raw``, which starts at the request line and ends with the empty line."""
    line = raw[: raw.find(b"\r\n")]
    parts = line.split(b" ")
    if len(parts) != 3:
        return refuse_line(line, limits)
    method = METHODS.get(parts[0])
    minor = _MINORS.get(parts[2])
    target = parts[1]
    # The parser refuses control characters in a target; the rest of what may stand there is settled here.
    if method is None or minor is None or target[:1] != b"/" or len(target) > limits.target_bytes or not line.isascii():
        return refuse_line(line, limits)
    rejected = None
    try:
        httptools.HttpRequestParser(_MUTE).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # an offer of another protocol may be ignored (RFC 9110 7.8); the request itself is whole
    except httptools.HttpParserError as error:
        rejected = malformed(f"The request's header fields are malformed: {error}.")
    head = RequestHead(method, target.decode("ascii"), minor, split_fields(raw))
    if len(head.headers) > limits.header_count:
        return refusal.TOO_MANY_HEADERS
    fault = head.frame() or rejected  # which of two lengths is too many is better told here than by the parser
    if fault is None and head.length > limits.body_bytes:
        fault = refusal.BODY_TOO_LARGE
    return fault or head


def refuse_line(line: bytes, limits: ServerLimits) -> Refusal:
    """Which rule a request line breaks; called only when it breaks one."""
    parts = line.split(b" ")
    if len(parts) != 3 or _TOKEN.fullmatch(parts[0]) is None or not parts[1] or not line.isascii():
        return malformed("The request line is malformed.")
    if len(parts[1]) > limits.target_bytes:
        return refusal.TARGET_TOO_LONG
    if re.fullmatch(rb"HTTP/[0-9]\.[0-9]", parts[2]) is None:
        return malformed("The request line does not end with an HTTP version.")
    if parts[2][:-1] != b"HTTP/1." or parts[2][-1:] not in b"01":
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
