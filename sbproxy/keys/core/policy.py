"""What a key allows. One function a rule gives a stable reason code; live traffic and the preview ask the same ones.

Identity, models, providers, tools and redaction only: rates and budgets are governance's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from sbproxy.errors.keys import (
    KeyBlocked,
    KeyExpired,
    KeyRefused,
    KeyRevoked,
    ModelNotAllowed,
    PiiRuleInactive,
    PrincipalNotAllowed,
    ProviderNotAllowed,
    TenantMismatch,
    ToolNotAllowed,
)
from sbproxy.keys.core.record import DEFAULT_TENANT, NOTHING, KeyRecord, PrincipalSelector, Priority

LifecycleReason = Literal["active", "blocked", "revoked", "expired"]
TenantReason = Literal["inherited", "match", "mismatch"]
RuleReason = Literal["not_sampled", "allowed", "blocked", "not_allowed"]
PrincipalReason = Literal["unrestricted", "not_sampled", "match", "mismatch"]
PiiReason = Literal["not_required", "not_sampled", "active", "rule_inactive"]

PERMITS: Final = frozenset(
    (
        "active", "inherited", "match", "not_sampled", "allowed", "unrestricted", "not_required", "within_limit",
        "bypassed", "not_detected", "default", "configured",
    )
)  # fmt: skip
"""The reason codes that let a request pass; every other one stops it."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who uses the key."""

    virtual_key: str | None = None
    team: str | None = None
    project: str | None = None
    user: str | None = None
    roles: tuple[str, ...] = ()
    claims: Mapping[str, str] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants. None is "not said"; ``tools`` and ``active_pii_rules`` are names."""

    model: str | None = None
    provider: str | None = None
    tools: tuple[str, ...] | None = None
    principal: Principal | None = None
    origin_tenant_id: str = DEFAULT_TENANT
    active_pii_rules: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True)
class Admission:
    """The request may go on: to ``model`` (which may be another than asked for) and in this priority class."""

    model: str | None
    priority: Priority
    inject_tools: tuple[Mapping[str, Any], ...] = ()


Verdict: TypeAlias = Admission | KeyRefused


def admit(record: KeyRecord, ask: Ask, now: float) -> Verdict:
    """The whole decision for live traffic, first refusal first. The caller raises what it does not like."""
    refusal = lifecycle_refusal(record, now) or _identity_refusal(record, ask)
    if refusal is not None:
        return refusal
    effective = effective_model(record, ask.model)
    if model_reason(record, effective) not in PERMITS:
        return ModelNotAllowed(record.key_id, ask.model or effective or "")
    if ask.provider is not None and not may_use_provider(record, ask.provider):
        return ProviderNotAllowed(record.key_id, ask.provider)
    if record.allowed_tools is not None and (denied := denied_tools(record, ask.tools)):
        return ToolNotAllowed(record.key_id, denied[0])
    if record.require_pii_redaction and (missing := missing_pii_rules(record, ask.active_pii_rules)):
        return PiiRuleInactive(record.key_id, missing[0])
    return Admission(effective, record.effective_priority, record.inject_tools)


def lifecycle_refusal(record: KeyRecord, now: float) -> KeyRefused | None:
    """None for a key that is active and has not expired."""
    reason = lifecycle_reason(record, now)
    if reason == "active":
        return None
    if reason == "revoked":
        return KeyRevoked(record.key_id)
    return KeyBlocked(record.key_id) if reason == "blocked" else KeyExpired(record.key_id)


def lifecycle_reason(record: KeyRecord, now: float) -> LifecycleReason:
    if record.status != "active":
        return record.status
    return "expired" if record.expires_at is not None and record.expires_at <= now else "active"


def tenant_reason(record: KeyRecord, origin_tenant_id: str) -> TenantReason:
    if record.tenant_id is None:
        return "inherited"
    return "match" if record.tenant_id == origin_tenant_id else "mismatch"


def effective_model(record: KeyRecord, requested: str | None) -> str | None:
    """``route_to_model`` wins over what was asked for."""
    return record.route_to_model or requested


def model_reason(record: KeyRecord, effective: str | None) -> RuleReason:
    return _listed(effective, record.allowed_models, record.blocked_models)


def provider_reason(record: KeyRecord, provider: str | None) -> RuleReason:
    return _listed(provider, record.allowed_providers, record.blocked_providers)


def may_use_provider(record: KeyRecord, provider: str) -> bool:
    """For each candidate of a routing decision."""
    return provider_reason(record, provider) in PERMITS


def denied_tools(record: KeyRecord, tools: tuple[str, ...] | None) -> tuple[str, ...]:
    """Those of ``tools`` that the key must not use. An empty ``allowed_tools`` denies every tool."""
    allowed = record.allowed_tools
    return () if allowed is None or not tools else tuple(tool for tool in tools if tool not in allowed)


def missing_pii_rules(record: KeyRecord, active: tuple[str, ...] | None) -> tuple[str, ...]:
    """The demanded rules that are not active; none where nothing is known about the active ones (preview only)."""
    return () if active is None else tuple(rule for rule in record.require_pii_redaction if rule not in active)


def principal_reason(record: KeyRecord, principal: Principal | None) -> PrincipalReason:
    """Any one selector that matches is enough."""
    if not record.principal_selectors:
        return "unrestricted"
    if principal is None:
        return "not_sampled"
    matched = any(_selects(selector, principal) for selector in record.principal_selectors)
    return "match" if matched else "mismatch"


def own_principal(record: KeyRecord) -> Principal:
    """Who a key speaks for when nobody says more: what its own record attributes it to."""
    return Principal(record.key_id, record.metadata.get("team"), record.project, record.user)


def policy_version(record: KeyRecord, origin_tenant_id: str) -> str:
    """``sha256:`` over the effective policy at an origin of that tenant: equal policies of one revision are equal."""
    policy = effective_policy(record, record.tenant_id or origin_tenant_id)
    text = json.dumps(policy, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def effective_policy(record: KeyRecord, tenant_id: str) -> dict[str, Any]:
    """Everything that decides about a request of this key, without secrets, as JSON values."""
    return {
        "key_id": record.key_id,
        "policy_revision": record.policy_revision,
        "tenant_id": tenant_id,
        "status": record.status,
        "expires_at": record.expires_at,
        "max_requests_per_minute": record.max_requests_per_minute,
        "max_tokens_per_minute": record.max_tokens_per_minute,
        "priority": record.effective_priority,
        "budget": {"max_tokens": record.budget.max_tokens, "max_cost_usd": record.budget.max_cost_usd},
        "allowed_models": list(record.allowed_models),
        "blocked_models": list(record.blocked_models),
        "allowed_providers": list(record.allowed_providers),
        "blocked_providers": list(record.blocked_providers),
        "allowed_tools": None if record.allowed_tools is None else list(record.allowed_tools),
        "require_pii_redaction": list(record.require_pii_redaction),
        "principal_selectors": [selector_json(selector) for selector in record.principal_selectors],
        "inject_tools": [dict(tool) for tool in record.inject_tools],
        "route_to_model": record.route_to_model,
        "bypass_prompt_injection": record.bypass_prompt_injection,
        "allow_content_capture": record.allow_content_capture,
        "project": record.project,
        "user": record.user,
        "tags": list(record.tags),
        "metadata": dict(record.metadata),
        "credential_bound": record.credential_id is not None,
    }


def selector_json(selector: PrincipalSelector) -> dict[str, Any]:
    """Only what the selector looks at."""
    names = ("virtual_key", "team", "project", "user", "role")
    said = {name: value for name in names if (value := getattr(selector, name)) is not None}
    return {**said, "claims": dict(selector.claims)} if selector.claims else said


def _identity_refusal(record: KeyRecord, ask: Ask) -> KeyRefused | None:
    if tenant_reason(record, ask.origin_tenant_id) == "mismatch":
        return TenantMismatch(record.key_id)
    if record.principal_selectors:
        # The key's own id is what it is, whatever the caller says about the rest.
        principal = replace(ask.principal or own_principal(record), virtual_key=record.key_id)
        if principal_reason(record, principal) == "mismatch":
            return PrincipalNotAllowed(record.key_id)
    return None


def _listed(name: str | None, allowed: tuple[str, ...], blocked: tuple[str, ...]) -> RuleReason:
    if name is None:
        return "not_sampled"
    if name in blocked:
        return "blocked"
    return "not_allowed" if allowed and name not in allowed else "allowed"


def _selects(selector: PrincipalSelector, principal: Principal) -> bool:
    names = ("virtual_key", "team", "project", "user")
    wanted = ((getattr(selector, name), getattr(principal, name)) for name in names)
    return (
        all(want is None or want == have for want, have in wanted)
        and (selector.role is None or selector.role in principal.roles)
        and all(principal.claims.get(name) == value for name, value in selector.claims.items())
    )
