"""Cuts a byte stream into server-sent events, whatever the pieces it arrives in.

Knows line ends and blank lines only; what an event says is read by ``chunks``.
"""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """An event grew above the bound before it ended."""


class SseReader:
    """Events come out with their lines joined by LF, without the blank line that ends them, and never empty."""

    __slots__ = ("_after_cr", "_at_start", "_buffer", "_limit")

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._buffer = bytearray()
        self._after_cr = False
        self._at_start = True

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that this piece completes. Raises EventTooLarge."""
        if self._after_cr or piece.find(b"\r") >= 0:  # dearer with ``in``, see ChunkRewriter.rewrite
            piece = self._with_line_feeds(piece)
        if self._at_start:
            piece = self._without_bom(piece)
        # Nearly always a piece is one event, whole: no copy into the buffer then.
        if (
            not self._buffer
            and piece.find(b"\n\n") == len(piece) - 2
            and not piece.startswith(b"\n")
            and len(piece) > 2
        ):
            if len(piece) - 2 > self._limit:
                raise EventTooLarge
            return [piece[:-2]]
        return self._cut(piece)

    @property
    def pending(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._buffer)

    def _cut(self, piece: bytes) -> list[bytes]:
        buffer = self._buffer
        unseen = max(0, len(buffer) - 1)
        buffer += piece
        events: list[bytes] = []
        if buffer.find(b"\n\n", unseen) >= 0:
            *whole, rest = bytes(buffer).split(b"\n\n")
            events = [event for event in (each.strip(b"\n") for each in whole) if event]
            buffer = self._buffer = bytearray(rest)
        # Of "\n\n\n" the third line feed is one more empty line, not a part of the next event.
        if buffer.startswith(b"\n"):
            buffer = self._buffer = buffer.lstrip(b"\n")
        if len(buffer) > self._limit + 1 or any(len(event) > self._limit for event in events):
            raise EventTooLarge
        return events

    def _with_line_feeds(self, piece: bytes) -> bytes:
        # A CR ends a line at once; an LF that follows it, even in the next piece, belongs to the same line end.
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if piece:
            self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_bom(self, piece: bytes) -> bytes:
        piece = bytes(self._buffer) + piece
        self._buffer.clear()
        if len(piece) < len(_BOM) and _BOM.startswith(piece):
            self._buffer += piece
            return b""
        self._at_start = False
        return piece.removeprefix(_BOM)
