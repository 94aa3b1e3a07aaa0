"""The life of one engine process: start, readiness, exit verdict, stop.

A fresh port and key, an own session, a cleared environment, a shim that ties it to the daemon (``shim``), a bounded
output tail. What the command line says is the driver's decision, why it ended is ``core.verdict``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from sbproxy.engines import shim
from sbproxy.engines.core.model import Endpoint, EngineBinary, ExitKind, ExitVerdict, LaunchSpec
from sbproxy.engines.core.verdict import Redaction, decide_verdict
from sbproxy.engines.output import OutputTail
from sbproxy.engines.ownership import TOKEN_VARIABLE, OwnershipLedger, Ticket
from sbproxy.engines.readiness import is_healthy, is_ours, owns_port, still_answers
from sbproxy.errors.engines import EngineLaunchFailed, EngineStopFailed
from sbproxy.errors.tree import SbproxyError

HOST = "127.0.0.1"
PORT_ATTEMPTS = 3
STOP_MARGIN_S = 5.0
"""What a container's runtime may take over the grace before its command is killed."""
KILL_WAIT_S = 10.0
PROBE_TIMEOUT_S = 1.0
FIRST_PROBE_PAUSE_S, MAX_PROBE_PAUSE_S = 0.02, 0.25
OUTPUT_WAIT_S = 0.5

_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-spawner")
"""The one thread that forks. The parent-death signal fires when the forking *thread* ends, and this one lives as long
as the process; it also keeps the wait for exec out of the event loop."""


Arguments = Callable[[int, str, Path], tuple[str, ...]]
"""Makes the command line for a port, an alias and a key file."""


class Enclosure(Protocol):
    """What an engine runs in when it is no plain child: a container, whose runtime's command is the child. Blocking."""

    def open(self, port: int, api_key: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """Prepare it for a start and return the runtime's words; OSError or EngineLaunchFailed when it cannot be."""
        ...

    def hosts(self, port: int) -> tuple[str, ...]:
        """Where it answers on this machine, best first; empty while it is not up. Nobody else can listen there."""
        ...

    def stop(self, grace_s: float) -> None:
        """Ask it to end, and end it after ``grace_s``; whether it did shows in the end of the child."""
        ...

    def close(self) -> bool:
        """End and remove what is left of it, also after a failed start; whether nothing is. Idempotent."""
        ...

    def exit_code(self, returncode: int) -> int | None:
        """The engine's own exit status (negative: signal) by that of the runtime's command."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start.

    ``key_variable`` names the environment variable in which the engine wants its key; such an engine also guards
    /v1/models. Without one the key is only in the key file. ``enclose`` makes the enclosure for an ownership token.
    """

    binary: EngineBinary
    spec: LaunchSpec
    arguments: Arguments
    environ: Mapping[str, str]
    run_root: Path
    key_variable: str | None = None
    enclose: Callable[[str, Path], Enclosure] | None = None


@dataclass(frozen=True, slots=True)
class _Seat:
    """The private folder (0700) of one process and the file of its key in it (0600)."""

    folder: Path
    key_file: Path
    log_file: Path
    """Outlives the folder, so that people can read why an engine ended."""
    ticket: Ticket


class LoopbackEngine:
    """An :class:`EngineProcess`. ``pid`` and ``endpoint`` are final once :meth:`wait_ready` has returned.

    Another process may take the port between our choice and the engine's bind; then it is started anew on another.
    """

    def __init__(self, launch: Launch, ledger: OwnershipLedger, loop: asyncio.AbstractEventLoop) -> None:
        """Blocking; on the spawner's thread. Raises OSError and leaves nothing when it cannot be started."""
        self._launch = launch
        self._ledger = ledger
        self._loop = loop
        self._attempts_left = PORT_ATTEMPTS
        self._ready = False
        self._end_as: ExitKind | None = None
        self._end_detail = ""
        self._gone = True
        # Held while a signal is sent and while a pid is taken or given back: no signal reaches another process.
        self._signals = threading.Lock()
        self._reaped = False
        self.exited: asyncio.Future[ExitVerdict] = loop.create_future()
        self.pid = 0
        self.endpoint = Endpoint(HOST, 0, "", "")
        self._seat = seat = _take_seat(launch, ledger)
        self._enclosure = launch.enclose(seat.ticket.token, seat.folder) if launch.enclose else None
        try:
            self._spawn()
        except (OSError, SbproxyError):
            self._leave_seat()
            raise

    @classmethod
    async def start(cls, launch: Launch, ledger: OwnershipLedger) -> LoopbackEngine:
        """Record the ownership and start the process; EngineLaunchFailed when even that is impossible."""
        starting = asyncio.wrap_future(_SPAWNER.submit(cls, launch, ledger, asyncio.get_running_loop()))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_abandon)
            raise
        except OSError as failure:
            raise EngineLaunchFailed(
                launch.binary.engine, ExitKind.CRASH, f"it cannot be started: {failure.strerror or failure}"
            ) from failure

    async def wait_ready(self, timeout_s: float) -> None:
        """See :class:`EngineProcess`. A late engine, and one whose port answers as somebody else, is ended."""
        deadline = self._loop.time() + timeout_s
        pause = FIRST_PROBE_PAUSE_S
        while (remaining := deadline - self._loop.time()) > 0:
            probe = asyncio.ensure_future(self._probe(min(PROBE_TIMEOUT_S, remaining)))
            try:
                pending: set[asyncio.Future[Any]] = {probe, self.exited}
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if self.exited.done():
                    raise self._failure(self.exited.result())
                if probe.result():
                    self._ready = True
                    return
            finally:
                probe.cancel()
            await asyncio.wait({self.exited}, timeout=min(pause, remaining))
            pause = min(pause * 1.5, MAX_PROBE_PAUSE_S)
        raise self._failure(await self._end(ExitKind.READINESS_TIMEOUT, f"not ready after {timeout_s:g} s", grace_s=0))

    async def healthy(self, timeout_s: float) -> bool:
        """See :class:`EngineProcess`. The engines answer also while they load a prompt or generate."""
        return await still_answers(self.endpoint, timeout_s)

    async def stop(self, grace_s: float) -> ExitVerdict:
        """See :class:`EngineProcess`. Raises EngineStopFailed when the process survives SIGKILL."""
        return await self._end(ExitKind.STOPPED, "stopped as asked", grace_s)

    def abandon(self) -> None:
        """Kill without waiting; the verdict follows as always."""
        self._end_as = self._end_as or ExitKind.STOPPED
        self._signal(signal.SIGKILL)

    async def _probe(self, timeout_s: float) -> bool:
        endpoint, guarded = self.endpoint, self._launch.key_variable is not None
        if self._enclosure is not None:
            return await self._probe_enclosed(self._enclosure, endpoint, timeout_s)
        if not await is_healthy(endpoint, timeout_s):
            return False
        owned = await asyncio.to_thread(owns_port, self.pid, endpoint.port)
        # A stranger on the port makes our own engine exit with a port verdict, which starts it anew. Who guards its
        # list of models is told the key, and only after it was seen to be ours.
        if owned is False or (guarded and owned is None):
            return False
        return await is_ours(endpoint, timeout_s, with_key=guarded) and endpoint is self.endpoint

    async def _probe_enclosed(self, enclosure: Enclosure, endpoint: Endpoint, timeout_s: float) -> bool:
        for host in await asyncio.to_thread(enclosure.hosts, endpoint.port):
            there = replace(endpoint, host=host)
            if await is_healthy(there, timeout_s) and await is_ours(there, timeout_s, with_key=True):
                if endpoint is not self.endpoint:
                    return False
                self.endpoint = there
                return True
        return False

    async def _end(self, kind: ExitKind, detail: str, grace_s: float) -> ExitVerdict:
        if not self.exited.done() and self._end_as is None:
            self._end_as, self._end_detail = kind, detail
        if grace_s > 0 and not self.exited.done():
            await self._ask_to_end(grace_s)
        if not self.exited.done():
            self._signal(signal.SIGKILL)
            await asyncio.wait({self.exited}, timeout=KILL_WAIT_S)
        if not self.exited.done():
            raise EngineStopFailed(self._launch.binary.engine, self.pid, KILL_WAIT_S)
        return self.exited.result()

    async def _ask_to_end(self, grace_s: float) -> None:
        if self._enclosure is None:
            self._signal(signal.SIGTERM)
            await asyncio.wait({self.exited}, timeout=grace_s)
            return
        asking = asyncio.ensure_future(asyncio.to_thread(self._enclosure.stop, grace_s))
        await asyncio.wait({self.exited}, timeout=grace_s + STOP_MARGIN_S)
        await asyncio.wait({asking}, timeout=STOP_MARGIN_S)

    def _failure(self, verdict: ExitVerdict) -> EngineLaunchFailed:
        return EngineLaunchFailed(self._launch.binary.engine, verdict.kind, verdict.detail)

    def _signal(self, number: signal.Signals) -> None:
        with self._signals:
            if not self._reaped:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)

    def _spawn(self) -> None:
        """Start the process. Only ever on the spawner's thread (see ``_SPAWNER``)."""
        launch, seat = self._launch, self._seat
        self._attempts_left -= 1
        port, alias, api_key = _free_port(), f"m-{secrets.token_hex(8)}", secrets.token_hex(32)
        environ = {"HOME": str(seat.folder), **launch.environ, TOKEN_VARIABLE: seat.ticket.token}
        if launch.key_variable is None:
            _write_key(seat.key_file, api_key)
        elif self._enclosure is None:
            environ[launch.key_variable] = api_key
        words = launch.arguments(port, alias, seat.key_file)
        if self._enclosure is not None:
            words = self._enclosure.open(port, api_key, words)
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", shim.__file__, str(seat.ticket.record), str(os.getpid())),
                *(str(launch.binary.program), *words),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=seat.folder,
            env=environ,
            start_new_session=True,
        )
        self.pid, self.endpoint, self._reaped = process.pid, Endpoint(HOST, port, alias, api_key), False
        threading.Thread(target=self._watch, args=(process,), name=f"engine-{process.pid}", daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """In a thread: wait for the end, end what is left of the group, publish the verdict on the loop."""
        assert process.stdout is not None  # noqa: S101 - asked for a pipe
        output = OutputTail(process.stdout, self._seat.log_file, self.endpoint.api_key)
        # Looking without reaping keeps the pid ours. Python on macOS learned it in 3.13; before, the group is let be.
        pinned = hasattr(os, "waitid")
        if pinned:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
        with self._signals:
            if pinned:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            returncode = process.wait()
            self._reaped = True
        output.finish(OUTPUT_WAIT_S)
        if self._enclosure is not None:
            self._gone = self._enclosure.close()
        verdict = self._verdict(returncode, output.text())
        if verdict.kind is ExitKind.PORT and self._attempts_left > 0:
            _SPAWNER.submit(self._spawn_again, verdict)
        else:
            self._finish(verdict)

    def _spawn_again(self, verdict: ExitVerdict) -> None:
        with self._signals:
            if self._end_as is None:
                with contextlib.suppress(OSError, SbproxyError):
                    self._spawn()
                    return
        self._finish(verdict if self._end_as is None else ExitVerdict(self._end_as, None, self._end_detail))

    def _finish(self, verdict: ExitVerdict) -> None:
        self._leave_seat()
        # Without a loop nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._publish, verdict)

    def _verdict(self, status: int, tail: str) -> ExitVerdict:
        returncode = self._enclosure.exit_code(status) if self._enclosure is not None else status
        redaction = Redaction(self._launch.spec.model_path, self._seat.folder, self.endpoint.api_key)
        end_as = self._end_as
        if end_as is not None and end_as is not ExitKind.STOPPED:
            return ExitVerdict(end_as, returncode, self._end_detail)
        return decide_verdict(
            returncode, tail, asked_to_stop=end_as is not None, was_ready=self._ready, redaction=redaction
        )

    def _publish(self, verdict: ExitVerdict) -> None:
        if not self.exited.done():
            self.exited.set_result(verdict)

    def _leave_seat(self) -> None:
        shutil.rmtree(self._seat.folder, ignore_errors=True)
        # The record of a container that its runtime does not let go of is what the next start ends it by.
        if self._gone:
            self._ledger.close(self._seat.ticket)


def _abandon(starting: asyncio.Future[LoopbackEngine]) -> None:
    """Nobody waits for this start any more."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().abandon()


def _take_seat(launch: Launch, ledger: OwnershipLedger) -> _Seat:
    """Make the private folder; the record comes first, so that a crash leaves nothing unowned."""
    spec = launch.spec
    launch.run_root.mkdir(mode=0o700, parents=True, exist_ok=True)
    ticket = ledger.open(
        engine=launch.binary.engine,
        deployment=spec.deployment,
        generation=spec.generation,
        program_sha256=launch.binary.sha256,
        run_root=launch.run_root,
        replica=spec.replica,
        container_program=launch.binary.program if launch.enclose else None,
    )
    try:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", spec.deployment)[:80]
        folder = launch.run_root / f"{name}-g{spec.generation}-{ticket.token}"
        folder.mkdir(mode=0o700)
        log_file = launch.run_root / "logs" / f"{name}.log"
        log_file.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        ledger.close(ticket)
        raise
    return _Seat(folder, folder / "key", log_file, ticket)


def _write_key(key_file: Path, api_key: str) -> None:
    """A new key for every process: an earlier one has perhaps been told to whoever sat on its port."""
    with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{api_key}\n")


def _free_port() -> int:
    """A port that was free a moment ago; the kernel does not hand the same one out again soon."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
