"""One file on its way into the store: every byte is counted and hashed as it is written, never more than declared."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sbproxy.artifacts.disk import size_of
from sbproxy.artifacts.progress import PullTracker
from sbproxy.catalog.core.model import CatalogFile
from sbproxy.errors.artifacts import DigestMismatch, SizeMismatch

CHUNK_BYTES = 1024 * 1024


class PartialFile:
    """``partials/<digest>/<sha>.part``. Use inside :meth:`opened`; OSErrors of the disk pass through."""

    def __init__(self, path: Path, file: CatalogFile, tracker: PullTracker) -> None:
        self.path = path
        self.file = file
        self._tracker = tracker
        self._stream: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self.offset = 0

    @property
    def complete(self) -> bool:
        return self.offset == self.file.size_bytes

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open for appending what :meth:`keep` or :meth:`restart` chose; unbuffered, so that a kill loses nothing."""
        self.path.parent.mkdir(exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._stream = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            yield
        finally:
            self._stream.close()
            self._stream = None

    def bytes_on_disk(self) -> int:
        return size_of(self.path) or 0

    def keep(self) -> None:
        """Continue what is on disk: hash it from the start and stand behind it."""
        self._reset()
        while chunk := self._open.read(CHUNK_BYTES):
            self._hash.update(chunk)
            self.offset += len(chunk)
            self._tracker.downloading(self.file.path, self.offset)

    def restart(self) -> None:
        self._reset()
        self._open.truncate(0)

    def write(self, chunk: bytes) -> None:
        """Append. Raises SizeMismatch at the first byte above the declared size, and keeps nothing then."""
        if self.offset + len(chunk) > self.file.size_bytes:
            self.discard()
            raise SizeMismatch(self.file.path, self.file.size_bytes, self.offset + len(chunk))
        view = memoryview(chunk)
        while view:
            written = self._open.write(view) or 0
            self._hash.update(view[:written])
            self.offset += written
            view = view[written:]
        self._tracker.downloading(self.file.path, self.offset)

    def seal(self) -> None:
        """Prove size and SHA-256, then sync. After SizeMismatch or DigestMismatch the file is gone."""
        actual = self._hash.hexdigest()
        if not self.complete:
            self.discard()
            raise SizeMismatch(self.file.path, self.file.size_bytes, self.offset)
        if actual != self.file.sha256:
            self.discard()
            raise DigestMismatch(self.file.path, self.file.sha256, actual)
        os.fsync(self._open.fileno())

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)

    def _reset(self) -> None:
        self._open.seek(0)
        self._hash = hashlib.sha256()
        self.offset = 0

    @property
    def _open(self) -> BinaryIO:
        if self._stream is None:
            raise RuntimeError("the partial file is not open")
        return self._stream


def hash_file(path: Path, step: Callable[[], None]) -> tuple[int, str]:
    """Bytes and SHA-256 of a file. ``step`` is called after each chunk and may raise to end it."""
    digest = hashlib.sha256()
    count = 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            count += len(chunk)
            step()
    return count, digest.hexdigest()
