"""What the probes say of the daemon: which parts serve (contracts section 42). Pure over what it is given."""

from __future__ import annotations

from collections.abc import Sequence

from sbproxy.admin.ports import ComponentHealth
from sbproxy.modelhost.core.status import StatusRow


def gateway_health(phase: str) -> ComponentHealth:
    """``phase`` is starting, serving or stopping; only a serving gateway is ready."""
    if phase == "serving":
        return ComponentHealth("gateway", "healthy")
    return ComponentHealth("gateway", "unhealthy", phase)


def model_host_health(rows: Sequence[StatusRow], *, starting: bool) -> ComponentHealth:
    """A failed deployment degrades the host and keeps the daemon ready: the other models still answer.

    ``starting``: deployments are configured and none is published yet.
    """
    if starting:
        return ComponentHealth("model_host", "degraded", "starting")
    failed = sorted({row.deployment for row in rows if row.state == "failed"})
    if not rows:
        return ComponentHealth("model_host", "not_configured")
    if failed:
        return ComponentHealth("model_host", "degraded", f"failed: {', '.join(failed)}"[:200])
    return ComponentHealth("model_host", "healthy")
