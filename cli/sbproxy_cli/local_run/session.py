"""The daemon of one `sbproxy run`, in this process: start, wait for the model, banner, wait for the end.

What it knows of the daemon's progress it learns as every client does, over the admin API.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sbproxy.daemon.daemon import Daemon
from sbproxy.daemon.main import run_on_fast_loop
from sbproxy_cli import diagnostics, output
from sbproxy_cli.invocation import Invocation
from sbproxy_cli.local_run.plan import RunPlan
from sbproxy_cli.local_run.readiness import until_answering

if TYPE_CHECKING:
    from sbproxy.daemon.options import ServeOptions


# There is no file of the user's to read again, so a hang-up is what it says: the terminal is gone.
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_session(path: Path, plan: RunPlan, invocation: Invocation) -> None:
    """Returns after a clean stop, also one that was asked for before the model was ready.

    Raises ModelNotReady, or whatever kept the daemon from starting.
    """
    run_on_fast_loop(_session(path, plan, invocation.serve_options(os.environ)))


async def _session(path: Path, plan: RunPlan, options: ServeOptions) -> None:
    daemon = Daemon(path, options)
    with _signals(daemon):
        life = asyncio.create_task(_live(daemon), name="daemon")
        ready = asyncio.create_task(until_answering(plan), name="readiness")
        try:
            await asyncio.wait((life, ready), return_when=asyncio.FIRST_COMPLETED)
            if not life.done():
                # A model that did not come up raises here, and the daemon is taken down below.
                ready.result()
                output.lines(*plan.banner())
            await life
        finally:
            ready.cancel()
            if not life.done():
                daemon.request_stop()
            await asyncio.gather(life, ready, return_exceptions=True)
    diagnostics.note("stopped; the model's files stay in the cache")


async def _live(daemon: Daemon) -> None:
    await daemon.start()
    await daemon.wait_stopped()


@contextmanager
def _signals(daemon: Daemon) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal drain; a second one stops at once (contracts section 0, row 9)."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        diagnostics.note("stopping; once more to stop at once")
        daemon.request_stop()

    for number in _ENDINGS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _ENDINGS:
            loop.remove_signal_handler(number)
