"""Takes a chunked request body apart, as strictly as RFC 9112 section 7.1 is written.

Requests need this of our own: the byte at which one request ends and the next begins must be known exactly, and
httptools does not tell it. Extensions and trailer fields are bounded and dropped.
"""

from __future__ import annotations

import re

from sbproxy.gateway.http import refusal
from sbproxy.gateway.http.refusal import Refusal, malformed

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})((?:;[\t -~\x80-\xff]*)?)")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*")
_FORBIDDEN_TRAILERS = (b"content-length", b"transfer-encoding", b"host")
_LINE_BYTES = 1024
_OVERHEAD_BYTES = 64 * 1024
# Each chunk costs about a microsecond, so a body may have some small ones, but not consist of them.
_FREE_CHUNKS = 4096
_BYTES_A_CHUNK = 512
_SIZE, _DATA, _DATA_END, _TRAILER = range(4)


class ChunkedBody:
    """Feed it bytes until ``done``; ``content`` then is the body and ``rest`` what follows it.

    ``overhead`` counts size lines and trailers: framing must not cost a server more than content.
    """

    __slots__ = ("_chunks", "_left", "_limit", "_line", "_overhead", "_phase", "content", "done", "rest", "size")

    def __init__(self, limit: int) -> None:
        # One buffer: a list of a million pieces would take many times the memory of what is in them.
        self.content = bytearray()
        self.size = 0
        self._chunks = 0
        self.done = False
        self.rest = b""
        self._limit = limit
        self._phase = _SIZE
        self._left = 0
        self._line = b""
        self._overhead = 0

    def feed(self, data: bytes) -> Refusal | None:
        """Take more of the body. Afterwards either a Refusal is returned, or ``done`` is set, or all was taken."""
        at = 0
        while not self.done:
            if self._phase == _DATA:
                piece = data[at : at + self._left]
                self.content += piece
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    return None
                self._phase = _DATA_END
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                # A data end is only CR LF, so that a wrong byte there is told at once and not at the next line feed.
                if self._phase == _DATA_END and self._line not in (b"", b"\r"):
                    return malformed("A chunk of the request body is longer than it says.")
                return None if len(self._line) <= _LINE_BYTES else malformed("A line of the chunked body is too long.")
            line = self._line + data[at : end + 1]
            at = end + 1
            self._line = b""
            fault = self._take_line(line)
            if fault is not None:
                return fault
        self.rest = data[at:]
        return None

    def _take_line(self, line: bytes) -> Refusal | None:
        if not line.endswith(b"\r\n"):
            return malformed("The lines of a chunked body must end with CR LF.")
        content = line[:-2]
        if self._phase == _DATA_END:
            self._phase = _SIZE
            return malformed("A chunk of the request body is longer than it says.") if content else None
        self._overhead += len(line)
        if len(line) > _LINE_BYTES or self._overhead > _OVERHEAD_BYTES + self.size // 4:
            return malformed("The chunked body carries more framing than this server accepts.")
        return self._take_size(content) if self._phase == _SIZE else self._take_trailer(content)

    def _take_size(self, content: bytes) -> Refusal | None:
        match = _SIZE_LINE.fullmatch(content)
        if match is None:
            return malformed("A chunk size of the request body is malformed.")
        self._left = int(match[1], 16)
        self.size += self._left
        if self.size > self._limit:
            return refusal.body_too_large(self._limit)
        self._chunks += 1
        if self._chunks > _FREE_CHUNKS + self.size // _BYTES_A_CHUNK:
            return malformed("The chunks of the request body are too small for its size.")
        self._phase = _DATA if self._left else _TRAILER
        return None

    def _take_trailer(self, content: bytes) -> Refusal | None:
        if not content:
            self.done = True
            return None
        if _TRAILER_LINE.fullmatch(content) is None:
            return malformed("A trailer field of the request body is malformed.")
        if content.split(b":", 1)[0].lower() in _FORBIDDEN_TRAILERS:
            return malformed("A trailer field of the request body may not change its framing.")
        return None
