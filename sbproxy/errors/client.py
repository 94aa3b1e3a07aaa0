"""What a client of the admin API can meet. Texts say what to set or to run next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class ClientError(SbproxyError):
    """Branch: talking to the admin API of a daemon."""


@dataclass(eq=False)
class AdminUrlInvalid(ClientError):
    """The address is not an ``http(s)://host[:port]`` without credentials in it."""

    code: ClassVar[str] = "admin_url_invalid"
    url: str
    reason: str

    def text(self) -> str:
        return f"{self.url!r} is not an admin address: {self.reason}; write it like http://127.0.0.1:9090"


@dataclass(eq=False)
class CredentialMissing(ClientError):
    """No admin password was given; nothing was sent."""

    code: ClassVar[str] = "credential_missing"
    url: str

    def text(self) -> str:
        return f"no password for {self.url}; set SB_ADMIN_PASSWORD, or pipe it in with --password-stdin"


@dataclass(eq=False)
class DaemonUnreachable(ClientError):
    """No connection, or it broke before an answer came."""

    code: ClassVar[str] = "daemon_unreachable"
    retryable: ClassVar[bool] = True
    url: str
    reason: str

    def text(self) -> str:
        return (
            f"no SBproxy admin API answers at {self.url} ({self.reason});"
            " start one with 'sbproxy serve', or point SB_ADMIN_URL at the one that runs"
        )


@dataclass(eq=False)
class DaemonSilent(ClientError):
    """Connected, but the answer did not come in time (seconds). A change may have been made all the same."""

    code: ClassVar[str] = "daemon_silent"
    retryable: ClassVar[bool] = True
    url: str
    action: str
    timeout_s: float

    def text(self) -> str:
        return (
            f"{self.url} did not answer {self.action} within {self.timeout_s:g} s;"
            " it may still be carried out, look with 'sbproxy models ps' before you repeat it"
        )


@dataclass(eq=False)
class Unauthorized(ClientError):
    """401: the daemon does not accept this user and password."""

    code: ClassVar[str] = "unauthorized"
    url: str
    username: str

    def text(self) -> str:
        return (
            f"{self.url} does not accept the password of {self.username!r};"
            " set SB_ADMIN_USERNAME and SB_ADMIN_PASSWORD to those of the daemon's proxy.admin block"
        )


@dataclass(eq=False)
class Forbidden(ClientError):
    """403: known, but the role or the network does not allow this."""

    code: ClassVar[str] = "forbidden"
    username: str
    action: str
    message: str

    def text(self) -> str:
        return f"{self.username!r} may not do {self.action}: {self.message}"


@dataclass(eq=False)
class DaemonRefused(ClientError):
    """Any other refusal. ``status`` is the HTTP status, ``reason_code`` the daemon's stable word for it."""

    code: ClassVar[str] = "daemon_refused"
    status: int
    reason_code: str | None
    message: str

    def text(self) -> str:
        word = f", {self.reason_code}" if self.reason_code else ""
        return f"the daemon refused (HTTP {self.status}{word}): {self.message}"


@dataclass(eq=False)
class ProtocolMismatch(ClientError):
    """What answers is not an SBproxy admin API, or speaks a newer message format."""

    code: ClassVar[str] = "protocol_mismatch"
    url: str
    action: str
    reason: str

    def text(self) -> str:
        return (
            f"what answers at {self.url} did not give a known answer to {self.action}: {self.reason};"
            " check the address, and that the daemon and this command have the same version"
        )


@dataclass(eq=False)
class JobFailed(ClientError):
    """A job that was waited for ended in ``failed``."""

    code: ClassVar[str] = "job_failed"
    job_id: str
    kind: str
    subject: str
    reason: str

    def text(self) -> str:
        return f"{self.kind} of {self.subject} failed: {self.reason} (job {self.job_id})"
