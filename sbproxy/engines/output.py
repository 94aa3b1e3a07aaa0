"""What an engine writes: the last 64 KiB in memory for the verdict, and a bounded log file for people."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from pathlib import Path
from typing import IO

TAIL_BYTES = 64 * 1024
LOG_BYTES = 1024 * 1024
_READ_BYTES = 16 * 1024


class Masked:
    """Replaces a secret in a stream, wherever the stream is cut. Only what may be its beginning is held back."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What may go on."""
        if not self._secret:
            return chunk
        text = (self._held + chunk).replace(self._secret, b"[key]")
        longest = min(len(text), len(self._secret) - 1)
        kept = next((size for size in range(longest, 0, -1) if self._secret.startswith(text[-size:])), 0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> bytes:
        """What was held back when the stream ended."""
        held, self._held = self._held, b""
        return held


class OutputTail:
    """Drains a pipe in a thread of its own until the last writer closes it, so that the engine never blocks on it.

    ``log_file`` (0600) grows from start to start and is renamed to ``<name>.1`` when it is full. An engine is not
    ended for a log that cannot be written. ``secret`` reaches neither: SGLang for one prints its own options.
    """

    def __init__(self, pipe: IO[bytes], log_file: Path, secret: str = "") -> None:
        self._pipe = pipe
        self._masked = Masked(secret.encode())
        self._log_file = log_file
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="engine-output", daemon=True)
        self._thread.start()

    def text(self) -> str:
        with self._lock:
            return b"".join(self._chunks)[-TAIL_BYTES:].decode("utf-8", "replace")

    def finish(self, timeout_s: float) -> None:
        """Wait for what is still in the pipe; a grandchild may hold it open, hence the bound."""
        self._thread.join(timeout_s)

    def _drain(self) -> None:
        log = _Log(self._log_file)
        descriptor = self._pipe.fileno()
        try:
            while chunk := os.read(descriptor, _READ_BYTES):
                self._pass_on(self._masked.feed(chunk), log)
        except OSError:
            pass
        finally:
            self._pipe.close()
            self._pass_on(self._masked.rest(), log)
            log.close()

    def _pass_on(self, chunk: bytes, log: _Log) -> None:
        if chunk:
            self._keep(chunk)
            log.write(chunk)

    def _keep(self, chunk: bytes) -> None:
        with self._lock:
            self._chunks.append(chunk)
            self._size += len(chunk)
            while self._size - len(self._chunks[0]) >= TAIL_BYTES:
                self._size -= len(self._chunks.popleft())


class _Log:
    """The file for people, opened at the first word."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._size = LOG_BYTES

    def write(self, chunk: bytes) -> None:
        if self._size >= LOG_BYTES:
            self._next()
        if self._file is not None:
            self._size += len(chunk)
            with contextlib.suppress(OSError):
                self._file.write(chunk)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next(self) -> None:
        self.close()
        self._size = 0
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.stat().st_size >= LOG_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(descriptor, "ab", buffering=0)
            self._size = os.fstat(descriptor).st_size
