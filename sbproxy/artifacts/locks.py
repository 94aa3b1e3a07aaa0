"""Cross-process locks of the store: flock on files, waited for by polling.

A lock ends with its holder, also by ``kill -9``; descriptors are not inherited by child processes. Order: pull
lock, then one blob lock, then the mutation lock; removal, which holds the last, only tries the others.
Whoever got a lock makes sure that its file still has its name, so the holder of a lock may delete its file.
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
    while (descriptor := _acquire(path, fcntl.LOCK_EX)) is None:
        wait()
    with _released_after(descriptor):
        yield


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Hold ``path`` together with others; waits for an exclusive holder (removals are short)."""
    while (descriptor := _acquire(path, fcntl.LOCK_SH)) is None:
        _sleep_a_poll()
    with _released_after(descriptor):
        yield


@contextmanager
def attempt(path: Path) -> Iterator[bool]:
    """Hold ``path`` alone if nobody holds it now; yields whether that worked."""
    descriptor = _acquire(path, fcntl.LOCK_EX)
    if descriptor is None:
        yield False
        return
    with _released_after(descriptor):
        yield True


def is_held(path: Path) -> bool:
    """Whether some holder has ``path`` now; creates nothing."""
    if not path.exists():
        return False
    with attempt(path) as free:
        return not free


def discard(path: Path) -> bool:
    """Delete the lock file unless somebody holds it; returns whether it is gone."""
    with attempt(path) as free:
        if free:
            path.unlink(missing_ok=True)
        return free


def _acquire(path: Path, kind: int) -> int | None:
    """The descriptor of a lock that is ours now, or ``None`` while another has it."""
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if _is_named(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        # Deleted between our opening and our locking: the file that others meet at now is another one.
        os.close(descriptor)


def _is_named(path: Path, descriptor: int) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


@contextmanager
def _released_after(descriptor: int) -> Iterator[None]:
    try:
        yield
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
