"""The whole of sb.yml as typed, frozen blocks (contracts sections 1, 3, 4, 14).

Reading text, interpolation and line numbers live in ``sbproxy.config.load``; cross-field rules in ``core.rules``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sbproxy.config.core.fields import Block, IpLiteral, Port, Secret
from sbproxy.config.core.model_host import ModelHostConfig
from sbproxy.config.core.origins import OriginConfig


class OperatorConfig(Block):
    """An admin operator beside the top-level identity; exactly one of the two password forms."""

    username: Annotated[str, Field(min_length=1, max_length=128)]
    password: Secret | None = None
    password_hash: str | None = None
    role: Literal["admin", "read_only"] = "read_only"


class AdminTlsConfig(Block):
    """Certificate and key files of the admin listener (PEM)."""

    cert: str
    key: str


class AdminConfig(Block):
    """``proxy.admin`` (contracts section 3)."""

    enabled: bool = False
    port: Port = 9090
    bind: IpLiteral = "127.0.0.1"
    username: Annotated[str, Field(min_length=1, max_length=128)] = "admin"
    password: Secret = Secret("changeme")
    max_log_entries: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    rate_limit_per_minute: Annotated[int, Field(ge=1, le=100_000)] = 240
    allow_ips: list[str] = []
    cors_origins: list[str] = []
    operators: list[OperatorConfig] = []
    tls: AdminTlsConfig | None = None


class ProxyConfig(Block):
    """``proxy``: the data-plane listener and the process-wide blocks."""

    http_bind_port: Port = 8080
    bind_address: IpLiteral = "0.0.0.0"  # noqa: S104 - the documents' default; `sbproxy run` and every example say loopback
    admin: AdminConfig = AdminConfig()
    model_host: ModelHostConfig = ModelHostConfig()
    extensions: dict[str, Any] = {}


class SbConfig(Block):
    """A loaded configuration. Unknown top-level keys only warn; they never reach this type."""

    proxy: ProxyConfig = ProxyConfig()
    origins: dict[str, OriginConfig] = {}
