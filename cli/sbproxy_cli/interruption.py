"""Runs a coroutine so that Ctrl-C and SIGTERM cancel it, and it can clean up before the process leaves."""

from __future__ import annotations

import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import typer

from sbproxy_cli import diagnostics

Result = TypeVar("Result")
TERMINATED = 143


def run_cancellable(verb: str, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``. Ctrl-C arrives as KeyboardInterrupt after the clean-up, SIGTERM as exit 143."""
    # Here and not above, because the parser loads every command's module and most lines need no event loop.
    import asyncio

    async def guarded() -> Result:
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        diagnostics.interrupted(verb, "terminated")
        raise typer.Exit(TERMINATED) from None
