"""What can keep the daemon from starting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class DaemonError(SbproxyError):
    """Branch: the process as a whole."""


@dataclass(eq=False)
class ListenFailed(DaemonError):
    """The data plane's address could not be taken."""

    code: ClassVar[str] = "listen_failed"
    bind: str
    port: int
    reason: str

    def text(self) -> str:
        return (
            f"gateway listener {self.bind}:{self.port}: {self.reason};"
            " change proxy.bind_address or proxy.http_bind_port, or stop what holds the port"
        )
