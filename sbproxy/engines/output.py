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


class OutputTail:
    """Drains a pipe in a thread of its own until the last writer closes it, so that the engine never blocks on it.

    ``log_file`` (0600) grows from start to start and is renamed to ``<name>.1`` when it is full. An engine is not
    ended for a log that cannot be written.
    """

    def __init__(self, pipe: IO[bytes], log_file: Path) -> None:
        self._pipe = pipe
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
        written = LOG_BYTES
        log: IO[bytes] | None = None
        descriptor = self._pipe.fileno()
        try:
            while chunk := os.read(descriptor, _READ_BYTES):
                self._keep(chunk)
                if written >= LOG_BYTES:
                    log, written = self._next_log(log)
                if log is not None:
                    written += len(chunk)
                    with contextlib.suppress(OSError):
                        log.write(chunk)
        except OSError:
            pass
        finally:
            self._pipe.close()
            if log is not None:
                log.close()

    def _keep(self, chunk: bytes) -> None:
        with self._lock:
            self._chunks.append(chunk)
            self._size += len(chunk)
            while self._size - len(self._chunks[0]) >= TAIL_BYTES:
                self._size -= len(self._chunks.popleft())

    def _next_log(self, log: IO[bytes] | None) -> tuple[IO[bytes] | None, int]:
        """The file to go on with and its size."""
        if log is not None:
            log.close()
        with contextlib.suppress(OSError):
            if self._log_file.exists() and self._log_file.stat().st_size >= LOG_BYTES:
                self._log_file.replace(self._log_file.with_name(f"{self._log_file.name}.1"))
            opened = os.fdopen(
                os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0
            )
            return opened, os.fstat(opened.fileno()).st_size
        return None, 0
