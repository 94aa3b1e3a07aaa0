"""Key and credential records as the API shows them: never a secret, never a hash."""

from __future__ import annotations

from typing import Any

from sbproxy.api.keys import OMITTED, Budget, CredentialView, KeyView
from sbproxy.keys.core.policy import policy_version, selector_json
from sbproxy.keys.core.record import CredentialRecord, KeyRecord, VaultRef
from sbproxy.keys.core.times import rfc3339
from sbproxy.keys.ports import Propagation


def key_view(record: KeyRecord, now: float) -> dict[str, Any]:
    """``policy_digest`` only where the record says what tenant it belongs to (document 2)."""
    view = KeyView(
        key_id=record.key_id,
        policy_revision=record.policy_revision,
        policy_digest=None if record.tenant_id is None else policy_version(record, record.tenant_id),
        name=record.name,
        status=record.status,
        max_requests_per_minute=record.max_requests_per_minute,
        max_tokens_per_minute=record.max_tokens_per_minute,
        priority=record.priority,
        budget=Budget(max_tokens=record.budget.max_tokens, max_cost_usd=record.budget.max_cost_usd),
        allowed_models=list(record.allowed_models),
        blocked_models=list(record.blocked_models),
        allowed_providers=list(record.allowed_providers),
        blocked_providers=list(record.blocked_providers),
        allowed_tools=None if record.allowed_tools is None else list(record.allowed_tools),
        require_pii_redaction=list(record.require_pii_redaction),
        principal_selectors=[selector_json(selector) for selector in record.principal_selectors],
        inject_tools=[dict(tool) for tool in record.inject_tools],
        route_to_model=record.route_to_model,
        compression_profile=record.compression_profile,
        inject_mcp=None if record.inject_mcp is None else dict(record.inject_mcp),
        bypass_prompt_injection=record.bypass_prompt_injection,
        allow_content_capture=record.allow_content_capture,
        project=record.project,
        user=record.user,
        tags=list(record.tags),
        metadata=dict(record.metadata),
        tenant_id=record.tenant_id,
        expires_at=rfc3339(record.expires_at),
        created_at=rfc3339(record.created_at),
        updated_at=rfc3339(record.updated_at),
        source=record.source,
        rotation_pending=record.rotation_pending(now),
    ).model_dump()
    for name in OMITTED:
        if view[name] is None:
            del view[name]
    view["budget"] = {name: value for name, value in view["budget"].items() if value is not None}
    return view


def credential_view(record: CredentialRecord) -> dict[str, Any]:
    view = CredentialView(
        id=record.id,
        name=record.name,
        provider=record.provider,
        kind=record.kind,
        header=record.header,
        scheme=record.scheme,
        status=record.status,
        tenant_id=record.tenant_id,
        metadata=dict(record.metadata),
        storage=record.storage,
        vault_ref=record.material.reference if isinstance(record.material, VaultRef) else None,
        created_at=rfc3339(record.created_at),
        updated_at=rfc3339(record.updated_at),
        source=record.source,
    ).model_dump()
    if view["vault_ref"] is None:
        del view["vault_ref"]
    return view


def with_propagation(body: dict[str, Any], failed: Propagation | None) -> dict[str, Any]:
    """A stored change that others were not told about still is a 2xx (contracts section 7)."""
    if failed is None:
        return body
    said = {"status": "failed", "detail": failed.detail, "effect": failed.effect}
    return {**body, "cache_propagation": said}
