"""Watches the folder of sb.yml and asks for a reload after its bytes have changed and been quiet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from watchfiles import awatch

QUIET_MS = 250
LONGEST_WAIT_MS = 2_000
"""Contracts section 1: reload after 250 ms of quiet, but after 2 s of steady changes at the latest."""

_log = logging.getLogger(__name__)


async def watch(path: Path, changed: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    """Call ``changed`` after each settled change of ``path`` until ``stop`` is set.

    The folder is watched, not the file: editors replace files by renaming, which ends a watch on the inode.
    Whether the bytes differ from what is loaded is for ``changed`` to see.
    """
    name = path.name
    try:
        async for changes in awatch(
            path.parent, step=QUIET_MS, debounce=LONGEST_WAIT_MS, stop_event=stop, recursive=False
        ):
            if any(Path(changed_path).name == name for _, changed_path in changes):
                await changed()
    except (OSError, RuntimeError) as error:
        # Without inotify handles the daemon still serves; SIGHUP and the reload route remain.
        _log.warning("config_watch_failed: %s; reload with SIGHUP or POST /admin/reload", error)
