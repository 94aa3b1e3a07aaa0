"""Durable file operations of the store, and what a failed one means to its user."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sbproxy.errors.artifacts import DiskFull, StoreUnusable

TEMP_PREFIX = ".tmp-"
"""Begins the name of everything that is not published yet; a leftover is garbage for whoever holds the lock."""


def temp_beside(path: Path) -> Path:
    return path.with_name(f"{TEMP_PREFIX}{uuid.uuid4().hex}")


def write_atomically(path: Path, data: bytes) -> None:
    """``path`` holds either what it held or all of ``data``, also after a power cut."""
    temp = temp_beside(path)
    try:
        with temp.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Delete a folder that may be gone, or be going, already."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, onerror=_tolerate_absence)


def _tolerate_absence(_function: object, _path: str, failure: tuple[object, object, object]) -> None:
    if isinstance(failure[1], BaseException) and not isinstance(failure[1], FileNotFoundError):
        raise failure[1]


def content(path: Path, limit: int) -> bytes | None:
    """What a file of ours holds, or ``None`` when there is none; one byte above ``limit`` at most, in bytes."""
    try:
        with path.open("rb") as stream:
            return stream.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None


def size_of(path: Path) -> int | None:
    """Bytes of a regular file (links followed), or ``None`` when there is none."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below; what somebody else removes meanwhile is left out, as is a folder that is not there."""
    for parent, _folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def bytes_below(folder: Path) -> int:
    return sum(size_of(path) or 0 for path in files_below(folder))


def free_bytes(folder: Path) -> int:
    """What an unprivileged process may still write there, in bytes."""
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def require_space(root: Path, needed_bytes: int) -> None:
    """Raises DiskFull before anything is fetched that could not be kept."""
    free = free_bytes(root)
    if needed_bytes > free:
        raise DiskFull(str(root), needed_bytes, free)


_NEXT_STEP = {
    errno.EACCES: "check its owner and its mode",
    errno.EPERM: "check its owner and its mode",
    errno.EROFS: "mount it writable or choose another directory",
    errno.ENAMETOOLONG: "choose a directory with a shorter path",
    errno.ENOTDIR: "a file stands where a directory must; choose another directory",
    errno.EEXIST: "a file stands where a directory must; choose another directory",
    errno.ENOENT: "nothing can be created there; choose another directory",
    errno.ELOOP: "its symbolic links lead in a circle; choose another directory",
    errno.EMFILE: "this process has too many open files; raise its limit (ulimit -n)",
    errno.ENFILE: "the system has too many open files; raise fs.file-max",
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there or raise the quota",
    errno.EIO: "its disk fails; look into the system's log",
}


def refusal(error: OSError) -> str:
    """What the system refused about a directory of ours, and the next step."""
    step = _NEXT_STEP.get(error.errno or 0, "check its owner, its mode and its file system")
    return f"{error.strerror or type(error).__name__}; {step}"


@contextmanager
def store_failures(root: Path, needed_bytes: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn an OSError of the store's own files into DiskFull or StoreUnusable."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(str(root), needed_bytes(), _free_or_zero(root)) from error
        raise StoreUnusable(str(root), refusal(error)) from error


def _free_or_zero(root: Path) -> int:
    try:
        return free_bytes(root)
    except OSError:
        return 0
