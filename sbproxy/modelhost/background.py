"""Keeps hold of tasks that nobody awaits, logs the defect that ends one, and waits for them at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Background:
    """A set of tasks owned by the model host."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def join(self, timeout_s: float) -> None:
        """Wait for all, cancel what is left after ``timeout_s`` seconds, and wait for that too."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._tasks and (left_s := deadline - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)
        left = list(self._tasks)
        for task in left:
            log.error("task %s did not end within %g s and is cancelled", task.get_name(), timeout_s)
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s ended by a defect", task.get_name(), exc_info=error)
