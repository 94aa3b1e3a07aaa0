"""Messages of probes, sessions, reload, drift and the request log (document 2)."""

from __future__ import annotations

from typing import Literal

from sbproxy.api.envelope import ApiAnswer, ApiRequest


class LoginRequest(ApiRequest):
    username: str
    password: str


class LoginAnswer(ApiAnswer):
    role: Literal["admin", "read_only"]
    csrf_token: str
    username: str


class SessionAnswer(ApiAnswer):
    """``GET /admin/session``; only ``authenticated`` is present when it is false."""

    authenticated: bool
    username: str | None = None
    role: Literal["admin", "read_only"] | None = None
    via_session: bool | None = None
    csrf_token: str | None = None


class HealthCheck(ApiAnswer):
    name: str
    status: Literal["healthy", "degraded", "unhealthy", "not_configured"]
    detail: str | None = None


class HealthAnswer(ApiAnswer):
    """``GET /health``: 200 ``ok`` or 503 ``unready``."""

    status: Literal["ok", "unready"]
    version: str
    build_hash: str
    timestamp: str
    uptime_seconds: int
    checks: list[HealthCheck]


class ReadyAnswer(ApiAnswer):
    status: Literal["ok", "unready"]
    components: list[HealthCheck]


class ReloadAnswer(ApiAnswer):
    config_revision: str
    loaded_at: str
    fully_applied: bool
    degraded: list[str]


class DriftAnswer(ApiAnswer):
    config_path: str
    loaded_revision: str
    loaded_content_hash: str
    on_disk_content_hash: str
    drift: bool
    on_disk_size_bytes: int
    checked_at: str


class RequestEntry(ApiAnswer):
    """One row of ``GET /api/requests``; absent values are omitted on the wire."""

    timestamp: str
    origin: str
    method: str
    path: str
    status: int
    latency_ms: float
    client_ip: str
    request_id: str
    cache_status: str = "disabled"
    retry_count: int = 0
    failover_engaged: bool = False
    provider: str | None = None
    deployment: str | None = None
    model: str | None = None
    route_class: str | None = None
    surface: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    usage_estimated: bool | None = None
    ttft_ms: float | None = None
    queued_ms: float | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    streamed: bool | None = None
    key_mode: str = "none"
    api_key_id: str | None = None
    error_class: str | None = None
    error_code: str | None = None
    config_revision: str | None = None
