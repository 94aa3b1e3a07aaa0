"""``proxy.key_management`` and the static keys of an origin (contracts sections 4, 7, 8)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sbproxy.config.core.fields import Block, FilePath, Identifier, Name, Secret, ShortName

Posture = Literal["closed", "degraded", "open"]
_Count = Annotated[int, Field(ge=0, le=(1 << 53))]
_Money = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
_Seconds = Annotated[int, Field(ge=1, le=86_400)]
_Names = Annotated[list[ShortName], Field(max_length=128)]


class KeyStoreConfig(Block):
    """`key_management.store`: where keys and credentials are kept."""

    backend: Literal["embedded", "redis"] = "embedded"
    """`embedded` is a SQLite file of this node; `redis` is shared by several daemons."""
    path: FilePath | None = None
    """File of `embedded`; unset means `keys.sqlite3` in the state directory."""
    url: Secret | None = None
    """Secret: the `redis://`, `rediss://` or `unix://` address of `redis`."""


class KeyCacheConfig(Block):
    """`key_management.cache`: records kept in memory, so that a request does not ask the store."""

    ttl_secs: _Seconds = 60
    """How long a record is used without asking the store, in seconds."""
    negative_ttl_secs: _Seconds = 5
    """How long an invalid key is refused without asking the store, in seconds."""
    max_entries: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """How many keys are kept."""
    tier: Literal["none", "redis"] = "none"
    """`redis` tells every daemon of the store at once when a key changes; others notice after `ttl_secs`."""


class KeyCryptoConfig(Block):
    """`key_management.crypto`: made once and kept in the state directory where not configured."""

    pepper: Secret | None = None
    """Secret of at least 16 characters that key hashes are made with; changing it makes every key invalid."""
    master_key: Secret | None = None
    """Secret of at least 16 characters that upstream credentials are sealed under."""


class InboundHeader(Block):
    """A request header that may carry a key."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$")]
    """Header name."""
    scheme: Annotated[str, Field(max_length=32, pattern=r"^[\x20-\x7e]*$")] = ""
    """What stands before the key, for example `Bearer ` with its space; empty for nothing."""


class InboundConfig(Block):
    """`key_management.inbound`: how clients present keys."""

    headers: Annotated[list[InboundHeader], Field(min_length=1, max_length=16)] = [
        InboundHeader(name="authorization", scheme="Bearer "),
        InboundHeader(name="x-api-key"),
        InboundHeader(name="x-sb-api"),
    ]
    """Headers that may carry a key; two different keys in one request are refused."""
    require: bool = False
    """Refuse requests without a key at every origin."""


class GovernanceBackend(Block):
    """`governance.backend`: the shared counters of `strict`."""

    type: Literal["redis"]
    """`redis` is the only one."""
    url: Secret
    """Secret: address of the Redis server."""


class GovernanceConfig(Block):
    """`key_management.governance`: how budgets and rates are counted (contracts section 8)."""

    consistency: Literal["approximate", "strict"] = "approximate"
    """`approximate` counts in this daemon; `strict` counts in a shared backend."""
    backend: GovernanceBackend | None = None
    """Needed with `strict`, refused otherwise."""
    lease_ttl_secs: Annotated[int, Field(ge=2, le=86_400)] = 120
    """How long a reservation lives without being renewed, in seconds."""
    terminal_retention_secs: Annotated[int, Field(ge=1, le=86_400)] = 300
    """How long a settled reservation is remembered, in seconds."""
    failure_posture: Posture = "closed"
    """What happens to requests while the backend does not answer."""
    missing_rate: Literal["zero_cost", "require_rate"] = "zero_cost"
    """What a request to a model without a price costs; `require_rate` refuses it for keys with a money budget."""


class StaticBudget(Block):
    """Lifetime ceilings of a key."""

    max_tokens: _Count | None = None
    """Tokens; unset means no ceiling."""
    max_cost_usd: _Money | None = None
    """US dollars; unset means no ceiling."""


class KeySeed(Block):
    """A key of the configuration that is put into the store; its policy has the names of `GET /admin/keys`."""

    id: Identifier
    """Key id; has to be the one in the token."""
    key: Secret
    """Secret: the whole token, `sbp_<id>_<64 hex>` or `sk-<id>-<secret>`."""
    name: ShortName | None = None
    """A name for people."""
    max_requests_per_minute: _Count | None = None
    """Requests a minute; unset means no limit."""
    max_tokens_per_minute: _Count | None = None
    """Tokens a minute; unset means no limit."""
    priority: Literal["interactive", "standard", "batch"] | None = None
    """Priority class of admission; unset means `standard`."""
    budget: StaticBudget = StaticBudget()
    """Lifetime ceilings."""
    allowed_models: _Names = []
    """Models that may be used; empty means all."""
    blocked_models: _Names = []
    """Models that may not be used; wins."""
    allowed_providers: _Names = []
    """Providers that may be used; empty means all."""
    blocked_providers: _Names = []
    """Providers that may not be used; wins."""
    allowed_tools: _Names | None = None
    """Tools that requests may offer; unset means any, empty means none."""
    require_pii_redaction: _Names = []
    """Redaction rules that must be active at the origin."""
    route_to_model: Name | None = None
    """The model that every request of this key runs on."""
    project: ShortName | None = None
    """Attribution."""
    user: ShortName | None = None
    """Attribution."""
    tags: _Names = []
    """Attribution."""
    metadata: Annotated[dict[str, str], Field(max_length=64)] = {}
    """Attribution."""
    allow_content_capture: bool = False
    """Let the origin keep samples of this key's requests."""
    credential_id: Identifier | None = None
    """Upstream credential that is presented for this key."""


class CredentialSeed(Block):
    """An upstream credential of the configuration that is put into the store; exactly one of the two material keys."""

    id: Identifier
    """Credential id."""
    provider: ShortName
    """Provider that it is presented to."""
    name: ShortName | None = None
    """A name for people."""
    header: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$")] = "authorization"
    """Upstream header."""
    scheme: Annotated[str, Field(max_length=32, pattern=r"^[\x20-\x7e]*$")] = "Bearer "
    """What stands before the secret; empty for nothing."""
    secret: Secret | None = None
    """Secret: sealed before it is stored."""
    vault_ref: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """`env:NAME` or `file:/absolute/path`, followed when the credential is used."""


class SeedConfig(Block):
    """`key_management.seed`: records that exist from the start."""

    keys: Annotated[list[KeySeed], Field(max_length=1024)] = []
    """Keys."""
    credentials: Annotated[list[CredentialSeed], Field(max_length=1024)] = []
    """Credentials."""


class KeyManagementConfig(Block):
    """`proxy.key_management`: virtual keys."""

    enabled: bool = False
    """Keep keys in a store, and serve their administration."""
    store: KeyStoreConfig = KeyStoreConfig()
    """Where records are kept."""
    cache: KeyCacheConfig = KeyCacheConfig()
    """Records in memory."""
    crypto: KeyCryptoConfig = KeyCryptoConfig()
    """Pepper and master key."""
    inbound: InboundConfig = InboundConfig()
    """How clients present keys."""
    failure_posture: Posture = "closed"
    """While the store does not answer: `closed` refuses keys that are not cached, `degraded` also uses outdated
    records, `open` lets everything else through without any policy."""
    allow_api_override: bool = False
    """Let the admin API change the policy of seeded keys, and keep such a change over a restart."""
    governance: GovernanceConfig = GovernanceConfig()
    """How budgets and rates are counted."""
    seed: SeedConfig = SeedConfig()
    """Records that exist from the start."""


class StaticModels(Block):
    """Models of a static key."""

    allow: _Names = []
    """Models that may be used; empty means all."""
    deny: _Names = []
    """Models that may not be used; wins."""


class StaticAttributes(Block):
    """Attribution and ceilings of a static key."""

    project: ShortName | None = None
    """Attribution."""
    user: ShortName | None = None
    """Attribution."""
    team: ShortName | None = None
    """Attribution."""
    tags: _Names = []
    """Attribution."""
    budget: StaticBudget = StaticBudget()
    """Lifetime ceilings."""


class RateLimitPolicy(Block):
    """Requests a minute."""

    type: Literal["rate_limit"]
    """`rate_limit`."""
    rpm: Annotated[int, Field(ge=1, le=1 << 31)]
    """Requests a minute."""


class PiiPolicy(Block):
    """Redaction rules that must be active."""

    type: Literal["require_pii_redaction"]
    """`require_pii_redaction`."""
    rules: Annotated[list[ShortName], Field(min_length=1, max_length=128)]
    """Names of rules."""


class StaticCredential(Block):
    """An entry of `origins.*.credentials`: a key that only this origin takes."""

    name: ShortName
    """Name of the key, unique in its origin."""
    type: Literal["ai_provider"] = "ai_provider"
    """`ai_provider` is the only type of this version."""
    provider: ShortName | None = None
    """The one provider that the key may use; unset means all of the origin."""
    key: Secret
    """Secret that clients present."""
    models: StaticModels = StaticModels()
    """Models."""
    attrs: StaticAttributes = StaticAttributes()
    """Attribution and ceilings."""
    policies: Annotated[
        list[Annotated[RateLimitPolicy | PiiPolicy, Field(discriminator="type")]], Field(max_length=16)
    ] = []
    """Limits and demands."""
    route_to_model: Name | None = None
    """The model that every request of this key runs on."""
    inject_tools: Annotated[list[dict[str, Any]], Field(max_length=128)] = []
    """Tool definitions that are added to every chat request of this key."""
