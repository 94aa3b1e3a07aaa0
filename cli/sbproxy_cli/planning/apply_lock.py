"""Keeps two applies of one file apart: an exclusive lock on `<yaml>.applylock`, held until the command ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sbproxy.errors.cli import ApplyLocked
from sbproxy.errors.config import ConfigUnreadable


@contextmanager
def apply_lock(config: Path) -> Iterator[None]:
    """Raises ConfigUnreadable; ApplyLocked at once when another apply holds it.

    The empty file stays, or two could hold its two lives.
    """
    if not config.exists():
        # A lock file is left beside what can be applied, never beside a misspelt name.
        raise ConfigUnreadable(str(config), "there is no such file")
    path = Path(f"{config}.applylock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ApplyLocked(str(path)) from None
        yield
    finally:
        os.close(descriptor)
