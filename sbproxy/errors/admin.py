"""What the admin API refuses, and what keeps its listener from starting (document 2; contracts sections 3 and 49)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class AdminError(SbproxyError):
    """Branch: the admin API."""


@dataclass(eq=False)
class InvalidBody(AdminError):
    """A request body that is missing, not JSON, or not the route's shape. ``reason`` never quotes the body."""

    code: ClassVar[str] = "invalid_body"
    reason: str

    def text(self) -> str:
        return self.reason


@dataclass(eq=False)
class BodyNotJson(AdminError):
    """A body that is not declared as what the route reads, which is also what a form of a web page could send."""

    code: ClassVar[str] = "unsupported_media_type"
    kind: str = "JSON"
    expected: str = "application/json"

    def text(self) -> str:
        return f"a request body must be {self.kind}; send it with Content-Type: {self.expected}"


@dataclass(eq=False)
class InvalidJobId(AdminError):
    """A job id in the path that is no ULID."""

    code: ClassVar[str] = "invalid_job_id"
    job_id: str

    def text(self) -> str:
        return "operation job ID must be a ULID"


@dataclass(eq=False)
class InvalidEventId(AdminError):
    """A ``Last-Event-ID`` header that is not a number this daemon could have sent."""

    code: ClassVar[str] = "invalid_last_event_id"
    limit: int

    def text(self) -> str:
        return f"Last-Event-ID must be a whole number from 0 to {self.limit}"


@dataclass(eq=False)
class StreamsExhausted(AdminError):
    """All places for event streams are taken."""

    code: ClassVar[str] = "too_many_streams"
    retryable: ClassVar[bool] = True
    limit: int

    def text(self) -> str:
        return f"{self.limit} event streams are open already; close one and try again"


@dataclass(eq=False)
class OwnStreamsExhausted(AdminError):
    """One identity's share of the event streams is taken."""

    code: ClassVar[str] = "too_many_own_streams"
    retryable: ClassVar[bool] = True
    username: str
    limit: int

    def text(self) -> str:
        return f"{self.username} has {self.limit} event streams open already; close one and try again"


@dataclass(eq=False)
class AuthorityReadOnly(AdminError):
    """A write to a deployment map that another authority owns (document 1, "Desired-state authority")."""

    code: ClassVar[str] = "authority_read_only"
    authority: str

    def text(self) -> str:
        if self.authority == "file_managed":
            return (
                "the deployments are file_managed: edit proxy.model_host.deployments in sb.yml,"
                " then reload (POST /admin/reload, or SIGHUP to the daemon)"
            )
        return f"the deployments are managed by {self.authority}; this node's map cannot be replaced here"


@dataclass(eq=False)
class ReloadInFlight(AdminError):
    """A reload was asked for while another one runs, whoever started it."""

    code: ClassVar[str] = "reload_in_flight"
    retryable: ClassVar[bool] = True
    started_by: str

    def text(self) -> str:
        return f"another reload is already in flight (started by {self.started_by})"


@dataclass(eq=False)
class ReloadUnavailable(AdminError):
    """There is no configuration file to read again, or no load to compare with."""

    code: ClassVar[str] = "reload_unavailable"
    reason: str

    def text(self) -> str:
        return f"nothing to reload from: {self.reason}"


@dataclass(eq=False)
class ConfigMoved(AdminError):
    """A configuration was sent for a revision that is no longer the loaded one (document 2, "PUT /admin/config")."""

    code: ClassVar[str] = "config_moved"
    expected: str
    actual: str

    def text(self) -> str:
        return (
            f"the loaded revision is {self.actual}, not {self.expected}; read the configuration again and reapply"
            " the change to it"
        )


@dataclass(eq=False)
class AdminListenFailed(AdminError):
    """The admin listener's address could not be taken."""

    code: ClassVar[str] = "admin_listen_failed"
    bind: str
    port: int
    reason: str

    def text(self) -> str:
        return f"admin listener {self.bind}:{self.port}: {self.reason}; change proxy.admin.bind or proxy.admin.port"


@dataclass(eq=False)
class AdminTlsUnusable(AdminError):
    """The certificate or key of ``proxy.admin.tls`` cannot be used."""

    code: ClassVar[str] = "admin_tls_unusable"
    cert: str
    key: str
    reason: str

    def text(self) -> str:
        return f"proxy.admin.tls: {self.cert} with {self.key} cannot be used: {self.reason}"


@dataclass(eq=False)
class PasswordHashInvalid(AdminError):
    """An operator's ``password_hash`` is not in the text form that ``hash_password`` writes."""

    code: ClassVar[str] = "password_hash_invalid"
    username: str
    reason: str

    def text(self) -> str:
        return f"proxy.admin.operators: the password_hash of {self.username!r} is unusable: {self.reason}"
