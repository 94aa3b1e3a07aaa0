"""Cross-process locks of the store: flock on files that are never deleted, waited for by polling.

A lock ends with its holder, also by ``kill -9``; descriptors are not inherited by child processes.
Order: pull lock, then one blob lock, then the mutation lock; removal only tries the first two.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.05


def _sleep_a_poll() -> None:
    time.sleep(POLL_S)


@contextmanager
def exclusive(path: Path, wait: Callable[[], None] = _sleep_a_poll) -> Iterator[None]:
    """Hold ``path`` alone. ``wait`` is called between tries; it sleeps, and may raise to give up."""
    with _opened(path) as descriptor:
        while not _try(descriptor, fcntl.LOCK_EX):
            wait()
        yield


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Hold ``path`` together with others; waits for an exclusive holder (removals are short)."""
    with _opened(path) as descriptor:
        while not _try(descriptor, fcntl.LOCK_SH):
            _sleep_a_poll()
        yield


@contextmanager
def attempt(path: Path) -> Iterator[bool]:
    """Hold ``path`` alone if nobody holds it now; yields whether that worked."""
    with _opened(path) as descriptor:
        yield _try(descriptor, fcntl.LOCK_EX)


def is_held(path: Path) -> bool:
    """Whether some holder has ``path`` now; creates nothing."""
    if not path.exists():
        return False
    with attempt(path) as free:
        return not free


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = _open(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        # On a store that may only be read, a lock file that is there already can still be held.
        if error.errno not in (errno.EROFS, errno.EACCES) or not path.exists():
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
