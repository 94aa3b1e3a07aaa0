"""An event loop whose clock jumps to the next timer as soon as nothing is left to do: minutes of waiting cost nothing.

Work for threads is done in the loop's own thread, and its result comes after a moment of the loop's own time.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing is ready and no timer runs: whoever waits now waits for ever"
            self.now += max(0.0, timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """``chance`` decides how long a thread would have taken, so that others come in between."""

    def __init__(self, chance: random.Random) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._chance = chance

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if done.done():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - a thread hands every error over
                done.set_exception(error)

        self.call_later(self._chance.choice((0, 0, 0.001, 0.02)), work)
        return done


class Inline(Executor):
    """Does at once what is submitted. A part that owns a thread gets this instead: its thread knows no such clock."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - a thread hands every error over
            done.set_exception(error)
        return done
