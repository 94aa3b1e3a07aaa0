"""Opens pickle files as their loaders would, a zip archive or a stream of pickles, and scans what would be unpickled.

Bounded in bytes and opcodes; whatever differs between this reading and a loader's is refused.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, Final

from sbproxy.artifacts.core.pickle_scan import LEGACY_MAGIC, LEGACY_PICKLES, Reader, UnsafePickle, check_pickle

MAX_PICKLE_BYTES: Final = 64 * 1024 * 1024
"""Of pickled data, tensors in an archive and behind a legacy checkpoint not counted."""
MAX_MEMBERS: Final = 200_000
_MAX_PICKLES: Final = 1000
_ZIP_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 0x1


def scan_file(path: Path) -> None:
    """Raises UnsafePickle; OSErrors of the disk pass through."""
    with path.open("rb") as stream:
        # The first bytes decide for PyTorch, too: an archive behind something else is not opened as one.
        start = stream.read(len(_ZIP_MAGIC))
        stream.seek(0)
        if start == _ZIP_MAGIC:
            _scan_archive(stream)
        elif tarfile.is_tarfile(stream):
            # PyTorch tries the oldest of its formats first, so the beginning of such a file proves nothing.
            raise UnsafePickle("is a tar archive, the oldest checkpoint format, which is not scanned")
        else:
            stream.seek(0)
            _scan_pickles(stream)


def _scan_archive(stream: BinaryIO) -> None:
    try:
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            _refuse_ambiguous(archive, members)
            pickles = [member for member in members if member.filename.lower().endswith(".pkl")]
            if not pickles:
                raise UnsafePickle("is an archive without a pickle")
            if sum(member.file_size for member in pickles) > MAX_PICKLE_BYTES:
                raise UnsafePickle(f"holds more than {MAX_PICKLE_BYTES >> 20} MiB of pickles")
            for member in pickles:
                _scan_pickles(io.BytesIO(archive.read(member)))
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, UnsafePickle):
            raise
        raise UnsafePickle(f"cannot be read as an archive ({str(error)[:80] or type(error).__name__})") from None


def _refuse_ambiguous(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> None:
    """What two readers of zip archives may understand differently."""
    if len(members) > MAX_MEMBERS:
        raise UnsafePickle(f"is an archive of more than {MAX_MEMBERS} members")
    # A name with a NUL, or with another one in its extra field, is not the same to every reader.
    if any(member.filename != member.orig_filename for member in members):
        raise UnsafePickle("is an archive with a member of two names")
    names = [member.filename.lower() for member in members]
    if len(set(names)) != len(names):
        raise UnsafePickle("is an archive with two members of one name")
    if archive.comment or min((member.header_offset for member in members), default=0):
        raise UnsafePickle("is an archive with something before or after it")
    if any(member.flag_bits & _ENCRYPTED for member in members):
        raise UnsafePickle("is an encrypted archive")


def _scan_pickles(stream: BinaryIO) -> None:
    """Every pickle of a stream: a loader may be asked for the next one as long as there are any."""
    reader = _Bounded(stream)
    last = _MAX_PICKLES
    for number in range(1, _MAX_PICKLES + 1):
        value = check_pickle(reader)
        if number == 1 and value == LEGACY_MAGIC:
            last = LEGACY_PICKLES
        if number == last or reader.at_end():
            return
    raise UnsafePickle(f"is a stream of more than {_MAX_PICKLES} pickles")


class _Bounded(Reader):
    """A stream of which at most MAX_PICKLE_BYTES are read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = MAX_PICKLE_BYTES

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= self._left:
            raise UnsafePickle(f"holds more than {MAX_PICKLE_BYTES >> 20} MiB of pickles")
        self._left -= size
        return self._stream.read(size)

    def readline(self) -> bytes:
        line = self._stream.readline(self._left + 1)
        if len(line) > self._left:
            raise UnsafePickle(f"holds more than {MAX_PICKLE_BYTES >> 20} MiB of pickles")
        self._left -= len(line)
        return line

    def at_end(self) -> bool:
        here = self._stream.tell()
        at_end = not self._stream.read(1)
        self._stream.seek(here)
        return at_end
