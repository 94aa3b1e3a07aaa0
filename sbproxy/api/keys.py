"""Messages of ``/admin/keys`` and ``/admin/credentials`` (document 2, "API keys and credentials")."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from sbproxy.api.envelope import ApiAnswer, ApiRequest

MAX_PREVIEW_BODY = 64 * 1024
MAX_ITEMS = 128
MAX_TEXT = 512
MAX_COUNT = 1 << 53
"""Whole numbers above it do not survive every JSON reader."""


def _bounded(text: str) -> str:
    if len(text.encode()) > MAX_TEXT:
        raise ValueError(f"at most {MAX_TEXT} bytes")
    return text


Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT), AfterValidator(_bounded)]
Texts = Annotated[list[Text], Field(max_length=MAX_ITEMS)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Revision = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Usd = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False, strict=False)]
PriorityName = Literal["interactive", "standard", "batch"]
Status = Literal["active", "blocked", "revoked"]
Words = Annotated[dict[Text, Annotated[str, StringConstraints(max_length=MAX_TEXT)]], Field(max_length=64)]
Header = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$")]
Scheme = Annotated[str, StringConstraints(max_length=32, pattern=r"^[\x20-\x7e]*$")]
SecretText = Annotated[str, StringConstraints(min_length=1, max_length=8192)]


class SelectorBody(ApiRequest):
    """One principal selector; whatever is set has to hold."""

    virtual_key: Text | None = None
    team: Text | None = None
    project: Text | None = None
    user: Text | None = None
    role: Text | None = None
    claims: Words = {}


class KeyPolicyBody(ApiRequest):
    """``POST /admin/keys``. Absent leaves a field as it is, ``null`` clears it where that is allowed."""

    name: Text | None = None
    max_requests_per_minute: Count | None = None
    max_tokens_per_minute: Count | None = None
    priority: PriorityName | None = None
    max_budget_tokens: Count | None = None
    max_budget_usd: Usd | None = None
    allowed_models: Texts = []
    blocked_models: Texts = []
    allowed_providers: Texts = []
    blocked_providers: Texts = []
    allowed_tools: Texts | None = None
    require_pii_redaction: Texts = []
    principal_selectors: Annotated[list[SelectorBody], Field(max_length=MAX_ITEMS)] = []
    inject_tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_ITEMS)] = []
    route_to_model: Text | None = None
    compression_profile: Text | None = None
    inject_mcp: dict[str, Any] | None = None
    bypass_prompt_injection: bool = False
    allow_content_capture: bool = False
    project: Text | None = None
    user: Text | None = None
    tags: Texts = []
    metadata: Words = {}
    tenant: Text | None = None
    credential_id: Text | None = None
    expires_at: Text | None = None


class KeyPatchBody(KeyPolicyBody):
    """``PATCH /admin/keys/{id}``."""

    expected_revision: Revision


class LifecycleBody(ApiRequest):
    """``revoke``, ``block``, ``unblock``; the body may be missing."""

    expected_revision: Revision | None = None


class RotateBody(LifecycleBody):
    grace_secs: Annotated[int, Field(ge=0, le=30 * 86_400)] = 3600


class PrincipalBody(ApiRequest):
    virtual_key: Text | None = None
    team: Text | None = None
    project: Text | None = None
    user: Text | None = None
    roles: Texts = []
    claims: Words = {}


class UsageBody(ApiRequest):
    requests_in_window: Count = 0
    tokens_in_window: Count = 0
    total_tokens: Count = 0
    total_micro_usd: Count = 0


class PreviewBody(ApiRequest):
    """``POST …/effective-policy/preview``: a hypothetical request. Everything is optional."""

    model: Text | None = None
    provider: Text | None = None
    tools: Texts | None = None
    principal: PrincipalBody | None = None
    origin_tenant_id: Text | None = None
    active_pii_rules: Texts | None = None
    prompt_injection_detected: bool | None = None
    estimated_tokens: Count | None = None
    estimated_micro_usd: Count | None = None
    usage: UsageBody | None = None
    at: Text | None = None


class EvictBody(ApiRequest):
    """``POST /admin/cache/key-policy/evict``; without an id everything is dropped."""

    id: Text | None = None


class Propagation(ApiAnswer):
    """The change is stored, but other daemons could not be told."""

    status: Literal["failed"] = "failed"
    detail: str
    effect: str


class Budget(ApiAnswer):
    max_tokens: int | None = None
    max_cost_usd: float | None = None


class KeyView(ApiAnswer):
    """A key without its secret. Fields that :data:`OMITTED` names are left out when they are unset."""

    key_id: str
    policy_revision: int
    policy_digest: str | None
    name: str | None
    status: Status
    max_requests_per_minute: int | None
    max_tokens_per_minute: int | None = None
    priority: PriorityName | None = None
    budget: Budget
    allowed_models: list[str]
    blocked_models: list[str]
    allowed_providers: list[str]
    blocked_providers: list[str]
    allowed_tools: list[str] | None
    require_pii_redaction: list[str]
    principal_selectors: list[dict[str, Any]]
    inject_tools: list[dict[str, Any]]
    route_to_model: str | None = None
    compression_profile: str | None = None
    inject_mcp: dict[str, Any] | None = None
    bypass_prompt_injection: bool
    allow_content_capture: bool
    project: str | None
    user: str | None
    tags: list[str]
    metadata: dict[str, str]
    tenant_id: str | None
    expires_at: str | None
    created_at: str
    updated_at: str
    source: Literal["config", "api"]
    rotation_pending: bool


OMITTED = ("max_tokens_per_minute", "priority", "route_to_model", "compression_profile", "inject_mcp")


class CredentialPatchBody(ApiRequest):
    """``PATCH /admin/credentials/{id}``."""

    name: Text | None = None
    provider: Text = ""
    metadata: Words = {}
    tenant: Text | None = None
    vault_ref: Text | None = None
    secret: Annotated[SecretText | None, Field(repr=False)] = None


class CredentialBody(CredentialPatchBody):
    """``POST /admin/credentials``; one of ``vault_ref`` and ``secret`` is needed."""

    provider: Text
    kind: Literal["ai_provider"] = "ai_provider"
    header: Header = "authorization"
    scheme: Scheme = "Bearer "


class CredentialView(ApiAnswer):
    """A credential without its secret; ``vault_ref`` only where there is one."""

    id: str
    name: str | None
    provider: str
    kind: str
    header: str
    scheme: str
    status: Status
    tenant_id: str | None
    metadata: dict[str, str]
    storage: Literal["vault_ref", "encrypted", "plaintext"]
    vault_ref: str | None = None
    created_at: str
    updated_at: str
    source: Literal["config", "api"]
