"""What can go wrong between a verified artifact and a running engine process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class EngineError(SbproxyError):
    """Branch: engine acquisition, launch and life."""


@dataclass(eq=False)
class EngineBlocked(EngineError):
    """Host policy or an incomplete pin forbids provisioning (document 1, availability ``blocked``)."""

    code: ClassVar[str] = "engine_blocked"
    engine: str
    reason: str

    def text(self) -> str:
        return f"engine {self.engine} is blocked: {self.reason}"


@dataclass(eq=False)
class EngineIncompatible(EngineError):
    """Artifact, engine build or worker cannot run together (availability ``incompatible``)."""

    code: ClassVar[str] = "engine_incompatible"
    engine: str
    reason: str

    def text(self) -> str:
        return f"engine {self.engine} cannot run this here: {self.reason}"


@dataclass(eq=False)
class UnsafeArgument(EngineError):
    """An ``extra_args`` element that is not on the engine's allow-list."""

    code: ClassVar[str] = "unsafe_argument"
    engine: str
    argument: str
    reason: str

    def text(self) -> str:
        return f"extra_args: {self.argument!r} is not allowed for {self.engine}: {self.reason}"


@dataclass(eq=False)
class EngineAcquisitionFailed(EngineError):
    """The pinned engine could not be fetched or did not match its pin."""

    code: ClassVar[str] = "engine_acquisition_failed"
    retryable: ClassVar[bool] = True
    engine: str
    method: str
    reason: str

    def text(self) -> str:
        return f"engine {self.engine} could not be acquired by {self.method}: {self.reason}"


@dataclass(eq=False)
class EngineAcquisitionCancelled(EngineError):
    """Whoever wanted the engine has given its acquisition up; nothing of it was kept."""

    code: ClassVar[str] = "engine_acquisition_cancelled"
    retryable: ClassVar[bool] = True
    engine: str

    def text(self) -> str:
        return f"fetching engine {self.engine} was cancelled; the next start that needs it fetches it anew"


@dataclass(eq=False)
class EngineLaunchFailed(EngineError):
    """The process ended, or did not get ready in time. ``verdict`` is an :class:`ExitKind` value."""

    code: ClassVar[str] = "engine_launch_failed"
    engine: str
    verdict: str
    detail: str

    def text(self) -> str:
        return f"engine {self.engine} did not start ({self.verdict}): {self.detail}"


@dataclass(eq=False)
class EngineStopFailed(EngineError):
    """The process did not end even after SIGKILL; it is still ours and still holds its memory."""

    code: ClassVar[str] = "engine_stop_failed"
    engine: str
    pid: int
    waited_s: float

    def text(self) -> str:
        return (
            f"engine {self.engine} (pid {self.pid}) did not end within {self.waited_s:g} s of SIGKILL;"
            " it still holds its memory"
        )
