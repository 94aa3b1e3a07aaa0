"""The whole of sb.yml as typed, frozen blocks (contracts sections 1, 3, 4, 14).

Reading text, interpolation and line numbers live in ``sbproxy.config.load``; cross-field rules in ``core.rules``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sbproxy.config.core.fields import Block, FilePath, IpLiteral, Port, Secret, ShortName
from sbproxy.config.core.key_management import KeyManagementConfig
from sbproxy.config.core.model_host import ModelHostConfig
from sbproxy.config.core.origins import OriginConfig


class OperatorConfig(Block):
    """An admin operator beside the top-level identity; exactly one of the two password forms."""

    username: ShortName
    """Name used to log in; unique among the operators and different from `admin.username`."""
    password: Secret | None = None
    """Secret: a literal, `${VAR}`, `env:NAME` or `file:/absolute/path`."""
    password_hash: Annotated[str, Field(min_length=1)] | None = None
    """A hash printed by `sbproxy admin hash-password`, instead of `password`."""
    role: Literal["admin", "read_only"] = "read_only"
    """`read_only` operators may look but change nothing."""


class AdminTlsConfig(Block):
    """Certificate and key files of the admin listener (PEM)."""

    cert: FilePath
    """Certificate chain file; a relative path starts at the directory of this document."""
    key: FilePath
    """Private key file; a relative path starts at the directory of this document."""


class AdminConfig(Block):
    """`proxy.admin`: the authenticated admin API (contracts section 3)."""

    enabled: bool = False
    """Open the admin listener."""
    port: Port = 9090
    """TCP port of the admin listener."""
    bind: IpLiteral = "127.0.0.1"
    """IP address literal of the admin listener; off loopback the default password is refused."""
    username: ShortName = "admin"
    """Top-level identity, role admin."""
    password: Secret = Secret("changeme")
    """Secret: a literal, `${VAR}`, `env:NAME` or `file:/absolute/path`."""
    max_log_entries: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """How many requests the request log keeps in memory."""
    rate_limit_per_minute: Annotated[int, Field(ge=1, le=100_000)] = 240
    """Admin requests a minute for one client address; all clients together may send ten times as many."""
    allow_ips: list[str] = []
    """Client addresses or CIDR networks that may connect; empty means loopback only."""
    cors_origins: list[str] = []
    """Browser origins (`https://host[:port]`) that may call the admin API."""
    operators: list[OperatorConfig] = []
    """Further identities."""
    tls: AdminTlsConfig | None = None
    """Serve the admin API over TLS."""


class ProxyConfig(Block):
    """`proxy`: the data-plane listener and the process-wide blocks."""

    http_bind_port: Port = 8080
    """TCP port of the data-plane listener."""
    bind_address: IpLiteral = "0.0.0.0"  # noqa: S104 - the documents' default; `sbproxy run` and every example say loopback
    """IP address literal of the data-plane listener."""
    admin: AdminConfig = AdminConfig()
    """The admin API."""
    model_host: ModelHostConfig = ModelHostConfig()
    """Models that this daemon runs itself."""
    key_management: KeyManagementConfig = KeyManagementConfig()
    """Virtual keys."""
    extensions: dict[str, Any] = {}
    """Opaque: kept and printed, never read by the daemon."""


class SbConfig(Block):
    """sb.yml: one daemon's configuration. Unknown top-level keys only warn; they never reach this type."""

    proxy: ProxyConfig = ProxyConfig()
    """Listeners, admin API and model host."""
    origins: dict[str, OriginConfig] = {}
    """Host name (lower-case, without port; `*.suffix` for a wildcard) to what is served there."""
