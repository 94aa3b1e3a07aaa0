"""The policy fields of a key as one table: how each is patched, cleared, previewed, and where it is enforced.

Served as ``GET /admin/keys/policy-schema`` (contracts section 7), and what ``core.change`` knows of names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

SCHEMA_VERSION = 1
Editor = Literal["text", "number", "money", "choice", "list", "selectors", "objects", "switch", "map", "time", "action"]


@dataclass(frozen=True, slots=True)
class PolicyField:
    """``effective`` names the field of the record, ``patch`` that of PATCH; an ``action`` has a route instead.

    ``clear`` is the value that PATCH empties it with. ``enforced`` is the rule that stops a request, or None for what
    this version cannot enforce and therefore does not take.
    """

    effective: str
    patch: str | None
    editor: Editor
    clear: Any = None
    preview: str | None = None
    enforced: str | None = None
    action: str | None = None
    choices: tuple[str, ...] = ()


_MODEL, _PROVIDER, _TOOLS = "decisions.model", "decisions.provider", "decisions.tools"

FIELDS: tuple[PolicyField, ...] = (
    PolicyField("name", "name", "text", enforced="none: a name for people"),
    PolicyField("status", None, "action", preview="decisions.lifecycle", enforced="403 key_blocked, key_revoked",
                action="POST /admin/keys/{id}/block|unblock|revoke"),
    PolicyField("expires_at", "expires_at", "time", preview="decisions.lifecycle", enforced="403 key_expired"),
    PolicyField("max_requests_per_minute", "max_requests_per_minute", "number", preview="decisions.rate_limits",
                enforced="429 before dispatch"),
    PolicyField("max_tokens_per_minute", "max_tokens_per_minute", "number", preview="decisions.rate_limits",
                enforced="429 before dispatch"),
    PolicyField("priority", "priority", "choice", preview="decisions.priority", enforced="the admission queue's order",
                choices=("interactive", "standard", "batch")),
    PolicyField("budget.max_tokens", "max_budget_tokens", "number", preview="decisions.budget",
                enforced="402 before dispatch"),
    PolicyField("budget.max_cost_usd", "max_budget_usd", "money", preview="decisions.budget",
                enforced="402 before dispatch"),
    PolicyField("allowed_models", "allowed_models", "list", [], _MODEL, "403 model_not_allowed"),
    PolicyField("blocked_models", "blocked_models", "list", [], _MODEL, "403 model_not_allowed"),
    PolicyField("allowed_providers", "allowed_providers", "list", [], _PROVIDER, "403 provider_not_allowed"),
    PolicyField("blocked_providers", "blocked_providers", "list", [], _PROVIDER, "403 provider_not_allowed"),
    PolicyField("allowed_tools", "allowed_tools", "list", None, _TOOLS, "403 tool_not_allowed; [] denies all"),
    PolicyField("require_pii_redaction", "require_pii_redaction", "list", [], "decisions.guardrails.pii",
                "500 pii_rule_inactive where the origin does not apply the rule"),
    PolicyField("principal_selectors", "principal_selectors", "selectors", [], "decisions.principal",
                "403 principal_not_allowed"),
    PolicyField("inject_tools", "inject_tools", "objects", [], "effective_policy.inject_tools",
                "added to the tools of chat requests"),
    PolicyField("route_to_model", "route_to_model", "text", None, _MODEL, "replaces the requested model"),
    PolicyField("compression_profile", "compression_profile", "text"),
    PolicyField("inject_mcp", "inject_mcp", "objects"),
    PolicyField("bypass_prompt_injection", "bypass_prompt_injection", "switch", False,
                "decisions.guardrails.prompt_injection", "the preview; there is no detector in this version"),
    PolicyField("allow_content_capture", "allow_content_capture", "switch", False,
                "effective_policy.allow_content_capture", "no sample is kept without it"),
    PolicyField("project", "project", "text", preview="decisions.principal", enforced="attribution, selectors"),
    PolicyField("user", "user", "text", preview="decisions.principal", enforced="attribution, selectors"),
    PolicyField("tags", "tags", "list", [], "effective_policy.tags", "attribution"),
    PolicyField("metadata", "metadata", "map", {}, "effective_policy.metadata", "attribution; team in selectors"),
    PolicyField("tenant_id", "tenant", "text", None, "decisions.tenant", "403 tenant_mismatch"),
    PolicyField("credential_id", "credential_id", "text", None, "effective_policy.credential_bound",
                "503 credential_unusable where it cannot be presented"),
)  # fmt: skip

UNENFORCED = frozenset(field.patch for field in FIELDS if field.enforced is None)
"""PATCH fields that may only be cleared."""


def policy_schema() -> dict[str, Any]:
    """The body of the route."""
    return {"schema_version": SCHEMA_VERSION, "fields": [_shown(field) for field in FIELDS]}


def _shown(field: PolicyField) -> dict[str, Any]:
    return {
        "effective_field": field.effective,
        "patch_field": field.patch,
        "action": field.action,
        "editor": field.editor,
        "choices": list(field.choices),
        "clear_value": field.clear,
        "preview_field": field.preview,
        "supported": field.enforced is not None,
        "enforcement": field.enforced,
    }
