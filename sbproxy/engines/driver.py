"""The role every engine driver plays for the model host. One implementation a driver module."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.engines.core.model import Availability, EngineBinary, ExitVerdict, LaunchSpec
from sbproxy.engines.core.model import Endpoint as Endpoint

AcquireProgress = Callable[[str, int, int | None], None]
"""Called with (what, done bytes, total bytes or None), from a worker thread, and at least a few times a second while
something is awaited. It may raise EngineAcquisitionCancelled: then the fetch ends, children included."""


class EngineProcess(Protocol):
    """One live engine process that this daemon owns."""

    pid: int
    endpoint: Endpoint
    exited: asyncio.Future[ExitVerdict]
    """Done as soon as the process has ended, whoever ended it. Never carries an exception."""

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when the engine answers its health check; raise EngineLaunchFailed when it exits or is late."""
        ...

    async def healthy(self, timeout_s: float) -> bool:
        """Whether it answers its health check within ``timeout_s`` seconds, busy or idle. False is evidence against
        the engine: when this daemon cannot even ask, the answer is True."""
        ...

    async def stop(self, grace_s: float) -> ExitVerdict:
        """TERM the process group, KILL it after ``grace_s`` seconds (0: at once), wait for the end. Idempotent."""
        ...


class EngineDriver(Protocol):
    """Availability, acquisition and launch of one kind of engine. Blocking methods run in worker threads."""

    name: str

    def availability(self) -> Availability:
        """Blocking, cheap (no network). One of document 1's four states with its reason."""
        ...

    def acquire(self, progress: AcquireProgress) -> EngineBinary:
        """Blocking. Find or fetch the binary; EngineBlocked, EngineIncompatible or EngineAcquisitionFailed."""
        ...

    def check(self, artifact: ResolvedArtifact, spec: LaunchSpec, binary: EngineBinary) -> None:
        """Refuse before launch what this build cannot do: EngineIncompatible or UnsafeArgument."""
        ...

    async def launch(self, binary: EngineBinary, spec: LaunchSpec) -> EngineProcess:
        """Start the process and record its ownership; EngineLaunchFailed when it cannot even be started."""
        ...
