"""What can go wrong on the data plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class GatewayError(SbproxyError):
    """Branch: the data plane."""


class UpstreamError(GatewayError):
    """Branch: the connection to an engine or provider."""


@dataclass(eq=False)
class UpstreamUnreachable(UpstreamError):
    """No connection could be made."""

    code: ClassVar[str] = "upstream_unreachable"
    retryable: ClassVar[bool] = True
    upstream: str
    reason: str

    def text(self) -> str:
        return f"{self.upstream} cannot be reached: {self.reason}"


@dataclass(eq=False)
class UpstreamTimeout(UpstreamError):
    """The head or the body did not come in time (seconds)."""

    code: ClassVar[str] = "upstream_timeout"
    retryable: ClassVar[bool] = True
    upstream: str
    timeout_s: float

    def text(self) -> str:
        return f"{self.upstream} did not answer within {self.timeout_s:g} s"


@dataclass(eq=False)
class UpstreamBroken(UpstreamError):
    """The connection ended in the middle of an answer, or the answer is not HTTP."""

    code: ClassVar[str] = "upstream_broken"
    retryable: ClassVar[bool] = True
    upstream: str
    reason: str

    def text(self) -> str:
        return f"the answer of {self.upstream} broke off: {self.reason}"


@dataclass(eq=False)
class UpstreamTooLarge(UpstreamError):
    """A unary answer above the limit in bytes."""

    code: ClassVar[str] = "upstream_too_large"
    upstream: str
    limit_bytes: int

    def text(self) -> str:
        return f"the answer of {self.upstream} is larger than {self.limit_bytes} bytes"
