"""Server-sent events out of bytes, under any chunking and with bounded memory. Knows nothing of jobs or HTTP."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LINE_BYTES = 1 << 20
MAX_EVENT_BYTES = 4 << 20


class SseOverflow(ValueError):
    """A line or an event is larger than a sane peer sends."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One dispatched event. ``id`` is the last id seen on the stream, as the standard says."""

    name: str
    data: str
    id: str | None


class SseReader:
    """Feed bytes, take events. Comments are dropped; LF, CR and CRLF end a line."""

    def __init__(self, last_event_id: str | None = None) -> None:
        self.last_event_id = last_event_id
        self._pending = bytearray()
        self._skip_lf = False
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Events that ``chunk`` completes. Raises SseOverflow on an oversized line or event."""
        events: list[SseEvent] = []
        for line in self._lines(chunk):
            event = self._take(line)
            if event is not None:
                events.append(event)
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        # A CR at the end of one chunk may have its LF at the start of the next.
        if self._skip_lf and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._skip_lf = False
        elif chunk:
            self._skip_lf = False
        self._skip_lf = self._skip_lf or chunk[-1:] == b"\r"
        self._pending += chunk
        # bytes.splitlines knows exactly LF, CR and CRLF; only a str splits at more.
        lines = bytes(self._pending).splitlines(keepends=True)
        rest = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
        self._pending = bytearray(rest)
        if len(rest) > MAX_LINE_BYTES:
            raise SseOverflow(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [line.rstrip(b"\r\n") for line in lines]

    def _take(self, line: bytes) -> SseEvent | None:
        if not line:
            return self._dispatch()
        field, _, raw = line.decode("utf-8", "replace").partition(":")
        value = raw.removeprefix(" ")
        if field == "data":
            self._size += len(line)
            if self._size > MAX_EVENT_BYTES:
                raise SseOverflow(f"an event of more than {MAX_EVENT_BYTES} bytes")
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "id" and "\0" not in value:
            self.last_event_id = value
        return None

    def _dispatch(self) -> SseEvent | None:
        name, data = self._name or "message", "\n".join(self._data)
        empty = not self._data
        self._name, self._data, self._size = "", [], 0
        return None if empty else SseEvent(name, data, self.last_event_id)
