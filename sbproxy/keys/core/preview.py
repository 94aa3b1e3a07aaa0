"""The effective-policy preview: every decision block for a hypothetical request (document 2).

Asks the rules of ``core.policy``; adds the limits, which live traffic has governance decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sbproxy.keys.core import policy
from sbproxy.keys.core.policy import PERMITS, Ask
from sbproxy.keys.core.record import KeyRecord
from sbproxy.keys.core.times import rfc3339


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Counters before the request. Money in millionths of a dollar."""

    requests_in_window: int = 0
    tokens_in_window: int = 0
    total_tokens: int = 0
    total_micro_usd: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """A hypothetical request. ``usage`` None: the counters were not said, so no limit is judged."""

    ask: Ask
    prompt_injection_detected: bool | None = None
    estimated_tokens: int | None = None
    estimated_micro_usd: int | None = None
    usage: UsageSample | None = None


def preview(record: KeyRecord, sample: Sample, now: float) -> dict[str, Any]:
    """The answer's body: ``effective_policy``, ``policy_version``, ``decisions``."""
    ask = sample.ask
    tenant = record.tenant_id or ask.origin_tenant_id
    blocks: dict[str, Any] = {
        "lifecycle": _block(
            policy.lifecycle_reason(record, now), status=record.status, expires_at=rfc3339(record.expires_at)
        ),
        "tenant": _block(
            policy.tenant_reason(record, ask.origin_tenant_id),
            origin_tenant_id=ask.origin_tenant_id,
            effective_tenant_id=tenant,
        ),
        "model": _model(record, ask),
        "provider": _block(policy.provider_reason(record, ask.provider), requested=ask.provider),
        "tools": _tools(record, ask),
        "principal": _block(policy.principal_reason(record, ask.principal), selectors=len(record.principal_selectors)),
        "rate_limits": _rates(record, sample),
        "budget": _budget(record, sample),
        "priority": _block("default" if record.priority is None else "configured", priority=record.effective_priority),
    }
    guardrails = {"pii": _pii(record, ask), "prompt_injection": _injection(record, sample)}
    allowed = all(block["allowed"] for block in (*blocks.values(), *guardrails.values()))
    shown = policy.effective_policy(record, tenant)
    return {
        "effective_policy": {**shown, "expires_at": rfc3339(record.expires_at)},
        "policy_version": policy.policy_version(record, ask.origin_tenant_id),
        "decisions": {"allowed": allowed, **blocks, "guardrails": guardrails},
    }


def _block(reason: str, **detail: Any) -> dict[str, Any]:
    return {"allowed": reason in PERMITS, "reason_code": reason, **detail}


def _model(record: KeyRecord, ask: Ask) -> dict[str, Any]:
    effective = policy.effective_model(record, ask.model)
    reason = policy.model_reason(record, effective)
    routed = record.route_to_model is not None and record.route_to_model != ask.model
    return _block(reason, requested=ask.model, effective=effective, routed=routed)


def _tools(record: KeyRecord, ask: Ask) -> dict[str, Any]:
    denied = policy.denied_tools(record, ask.tools)
    if ask.tools is None:
        reason = "not_sampled"
    elif denied:
        reason = "not_allowed"
    else:
        reason = "unrestricted" if record.allowed_tools is None else "allowed"
    requested = None if ask.tools is None else list(ask.tools)
    return _block(reason, requested=requested, denied=list(denied))


def _pii(record: KeyRecord, ask: Ask) -> dict[str, Any]:
    missing = policy.missing_pii_rules(record, ask.active_pii_rules)
    if not record.require_pii_redaction:
        reason = "not_required"
    elif ask.active_pii_rules is None:
        reason = "not_sampled"
    else:
        reason = "rule_inactive" if missing else "active"
    return _block(reason, required=list(record.require_pii_redaction), missing=list(missing))


def _injection(record: KeyRecord, sample: Sample) -> dict[str, Any]:
    detected = sample.prompt_injection_detected
    if detected is None:
        reason = "not_sampled"
    elif not detected:
        reason = "not_detected"
    else:
        reason = "bypassed" if record.bypass_prompt_injection else "detected"
    return _block(reason, bypass=record.bypass_prompt_injection)


def _rates(record: KeyRecord, sample: Sample) -> dict[str, Any]:
    usage = sample.usage
    requests = _limit(record.max_requests_per_minute, usage.requests_in_window if usage else None, 1)
    tokens = _limit(record.max_tokens_per_minute, usage.tokens_in_window if usage else None, sample.estimated_tokens)
    return _limits("rate_exceeded", requests=requests, tokens=tokens)


def _budget(record: KeyRecord, sample: Sample) -> dict[str, Any]:
    usage = sample.usage
    tokens = _limit(record.budget.max_tokens, usage.total_tokens if usage else None, sample.estimated_tokens)
    spent = usage.total_micro_usd if usage else None
    money = _limit(record.budget.max_cost_micros, spent, sample.estimated_micro_usd)
    return _limits("budget_exhausted", tokens=tokens, micro_usd=money)


def _limit(limit: int | None, used: int | None, wanted: int | None) -> dict[str, Any]:
    remaining = None if limit is None or used is None else max(0, limit - used)
    # Without an estimate a request still needs something: a used-up budget stops it.
    over = limit is not None and used is not None and used + max(1, wanted or 0) > limit
    return {"limit": limit, "used": used, "remaining": remaining, "exceeded": over}


def _limits(denial: str, **limits: dict[str, Any]) -> dict[str, Any]:
    if any(limit["exceeded"] for limit in limits.values()):
        reason = denial
    elif all(limit["limit"] is None for limit in limits.values()):
        reason = "unrestricted"
    else:
        sampled = any(limit["used"] is not None for limit in limits.values())
        reason = "within_limit" if sampled else "not_sampled"
    return _block(reason, **limits)
