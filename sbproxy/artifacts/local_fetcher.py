"""Copies files of a ``file:`` source into partial files. The source is only read, never linked or changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sbproxy.artifacts.core.source import LocalFiles
from sbproxy.artifacts.partial import CHUNK_BYTES, PartialFile
from sbproxy.artifacts.progress import PullTracker
from sbproxy.catalog.core.model import CatalogFile
from sbproxy.errors.artifacts import SizeMismatch, SourceNotFound, UnsafeArtifactPath


class LocalFetcher:
    """Fetches the files of one artifact from this machine's file system, each from its beginning."""

    def __init__(self, source: LocalFiles, files: int, tracker: PullTracker) -> None:
        self._root = Path(source.path)
        self._single = files == 1
        self._tracker = tracker

    def fetch(self, file: CatalogFile, partial: PartialFile) -> None:
        """Fill and seal ``partial``. Raises SourceNotFound, UnsafeArtifactPath, SizeMismatch, DigestMismatch."""
        with partial.opened():
            partial.restart()
            for chunk in self._chunks(file):
                partial.write(chunk)
                self._tracker.fetched_bytes += len(chunk)
            partial.seal()

    def _chunks(self, file: CatalogFile) -> Iterator[bytes]:
        origin = self._root / file.path
        try:
            if self._single and not self._root.is_dir():
                origin = self._root
            # Non-blocking, so that a named pipe is refused below instead of waited for.
            descriptor = os.open(origin, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb", buffering=0) as stream:
                facts = os.fstat(descriptor)
                if not stat.S_ISREG(facts.st_mode):
                    raise UnsafeArtifactPath(str(origin), "not a regular file")
                if facts.st_size != file.size_bytes:
                    raise SizeMismatch(str(origin), file.size_bytes, facts.st_size)
                while chunk := stream.read(CHUNK_BYTES):
                    yield chunk
        except (FileNotFoundError, NotADirectoryError):
            raise SourceNotFound(file.path, f"file:{self._root}") from None
        except OSError as error:
            raise UnsafeArtifactPath(
                str(origin), f"cannot be read: {error.strerror}; check the file: source"
            ) from error
