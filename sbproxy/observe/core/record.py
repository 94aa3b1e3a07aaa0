"""The record of one finished request, the row of ``GET /api/requests`` (document 2)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RequestRecord:
    """Plain and mutable: it is made on the hot path and filled while the request runs.

    ``finished_at`` is Unix seconds, ``latency_ms`` and ``ttft_ms`` milliseconds. Optional fields that stay None are
    omitted from the API.
    """

    request_id: str
    origin: str
    method: str
    path: str
    client_ip: str
    status: int = 0
    latency_ms: float = 0.0
    finished_at: float = 0.0
    provider: str | None = None
    deployment: str | None = None
    model: str | None = None
    route_class: str | None = None
    surface: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    usage_estimated: bool = False
    ttft_ms: float | None = None
    queued_ms: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    streamed: bool = False
    error_class: str | None = None
    error_code: str | None = None
    config_revision: str | None = None
    retry_count: int = 0
    failover_engaged: bool = False
    api_key_id: str | None = None
    key_mode: str | None = None
