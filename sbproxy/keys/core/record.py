"""Key and credential records as they are stored (contracts section 7). Times are Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

KeyStatus = Literal["active", "blocked", "revoked"]
Priority = Literal["interactive", "standard", "batch"]
Source = Literal["config", "api"]

DEFAULT_TENANT = "__default__"
DEFAULT_PRIORITY: Priority = "standard"
HASH_ALG = "hmac-sha256.v1"
MICROS = 1_000_000
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class KeyBudget:
    """Lifetime ceilings; None is no ceiling."""

    max_tokens: int | None = None
    max_cost_usd: float | None = None

    @property
    def max_cost_micros(self) -> int | None:
        """The money ceiling in millionths of a dollar."""
        return None if self.max_cost_usd is None else round(self.max_cost_usd * MICROS)


@dataclass(frozen=True, slots=True)
class PrincipalSelector:
    """Matches a principal for which everything that is set here holds."""

    virtual_key: str | None = None
    team: str | None = None
    project: str | None = None
    user: str | None = None
    role: str | None = None
    claims: Mapping[str, str] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """One virtual key. ``allowed_tools`` None is any tool, ``()`` is none; other empty allow lists allow everything."""

    key_id: str
    policy_revision: int = 1
    status: KeyStatus = "active"
    secret_hash: str = field(repr=False)
    prev_secret_hash: str | None = field(default=None, repr=False)
    prev_hash_expires_at: float | None = None
    hash_alg: str = HASH_ALG
    seed_hash: str | None = field(default=None, repr=False)
    """The verifier that the configuration gave when it was last followed; a rotation does not change it."""
    name: str | None = None
    max_requests_per_minute: int | None = None
    max_tokens_per_minute: int | None = None
    priority: Priority | None = None
    budget: KeyBudget = KeyBudget()
    allowed_models: tuple[str, ...] = ()
    blocked_models: tuple[str, ...] = ()
    allowed_providers: tuple[str, ...] = ()
    blocked_providers: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] | None = None
    require_pii_redaction: tuple[str, ...] = ()
    principal_selectors: tuple[PrincipalSelector, ...] = ()
    inject_tools: tuple[Mapping[str, Any], ...] = ()
    route_to_model: str | None = None
    compression_profile: str | None = None
    inject_mcp: Mapping[str, Any] | None = None
    bypass_prompt_injection: bool = False
    allow_content_capture: bool = False
    project: str | None = None
    user: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    tenant_id: str | None = None
    credential_id: str | None = None
    expires_at: float | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    source: Source = "api"

    @property
    def effective_priority(self) -> Priority:
        return self.priority or DEFAULT_PRIORITY

    def rotation_pending(self, now: float) -> bool:
        """Whether the secret before the last rotation still opens."""
        return self.prev_secret_hash is not None and (self.prev_hash_expires_at or 0.0) > now


@dataclass(frozen=True, slots=True)
class VaultRef:
    """Where a secret is, not what it is: ``env:NAME`` or ``file:/path``."""

    reference: str


@dataclass(frozen=True, slots=True)
class Envelope:
    """A secret sealed under a data key of its own, which is wrapped under the master key. Hexadecimal text."""

    wrapped_key: str = field(repr=False)
    sealed: str = field(repr=False)


Material: TypeAlias = VaultRef | Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRecord:
    """One upstream credential and the header that it is presented in."""

    id: str
    provider: str
    material: Material
    name: str | None = None
    kind: Literal["ai_provider"] = "ai_provider"
    header: str = "authorization"
    scheme: str = "Bearer "
    status: KeyStatus = "active"
    tenant_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    created_at: float = 0.0
    updated_at: float = 0.0
    source: Source = "api"

    @property
    def storage(self) -> Literal["vault_ref", "encrypted"]:
        return "vault_ref" if isinstance(self.material, VaultRef) else "encrypted"
