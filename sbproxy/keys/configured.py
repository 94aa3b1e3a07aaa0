"""Keys and credentials that the configuration writes: static keys of an origin, and seeds of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sbproxy.config.core.key_management import (
    CredentialSeed,
    KeySeed,
    RateLimitPolicy,
    SeedConfig,
    StaticCredential,
)
from sbproxy.errors.admin import InvalidBody
from sbproxy.errors.keys import (
    KeyMaterialUnusable,
    KeyRecordExists,
    KeyRevisionConflict,
    KeySettingInvalid,
    UnknownCredential,
)
from sbproxy.keys.core.change import seeded
from sbproxy.keys.core.record import CredentialRecord, Envelope, KeyBudget, KeyRecord, Material
from sbproxy.keys.core.token import MAX_TOKEN, parse, token_digest, verifier
from sbproxy.keys.credential_desk import new_material
from sbproxy.keys.crypto import KeyMaterial, unseal
from sbproxy.keys.ports import KeyStore

_SEED = "proxy.key_management.seed"
_MOST_RACES = 3


def static_keys(origins: Mapping[str, Sequence[StaticCredential]], pepper: bytes) -> dict[str, dict[bytes, KeyRecord]]:
    """Origin to digest of the token to record, as the directory wants them. Raises KeySettingInvalid."""
    return {origin: _of_origin(origin, entries, pepper) for origin, entries in origins.items() if entries}


def _of_origin(origin: str, entries: Sequence[StaticCredential], pepper: bytes) -> dict[bytes, KeyRecord]:
    found: dict[bytes, KeyRecord] = {}
    for index, entry in enumerate(entries):
        token = entry.key.get_secret_value().encode()
        digest = token_digest(token, pepper)
        where = f"origins.{origin}.credentials[{index}].key"
        if not 16 <= len(token) <= MAX_TOKEN:
            raise KeySettingInvalid(where, f"a key has 16 to {MAX_TOKEN} characters")
        if digest in found:
            raise KeySettingInvalid(where, f"it is the same key as that of {found[digest].name!r}")
        found[digest] = _static_record(origin, entry, digest.hex())
    return found


def _static_record(origin: str, entry: StaticCredential, secret_hash: str) -> KeyRecord:
    attrs = entry.attrs
    limits = [policy.rpm for policy in entry.policies if isinstance(policy, RateLimitPolicy)]
    demands = [rule for policy in entry.policies if not isinstance(policy, RateLimitPolicy) for rule in policy.rules]
    return KeyRecord(
        key_id=f"{origin}/{entry.name}",
        secret_hash=secret_hash,
        name=entry.name,
        max_requests_per_minute=min(limits, default=None),
        budget=KeyBudget(attrs.budget.max_tokens, attrs.budget.max_cost_usd),
        allowed_models=tuple(entry.models.allow),
        blocked_models=tuple(entry.models.deny),
        allowed_providers=() if entry.provider is None else (entry.provider,),
        require_pii_redaction=tuple(demands),
        inject_tools=tuple(entry.inject_tools),
        route_to_model=entry.route_to_model,
        project=attrs.project,
        user=attrs.user,
        tags=tuple(attrs.tags),
        metadata={} if attrs.team is None else {"team": attrs.team},
        source="config",
    )


class Seeds:
    """What ``seed`` says, checked. Raises KeySettingInvalid when it is made."""

    def __init__(self, config: SeedConfig, material: KeyMaterial, *, allow_override: bool) -> None:
        self._keys = [_seed_record(index, entry, material.pepper) for index, entry in enumerate(config.keys)]
        self._credentials = config.credentials
        self._material = material
        self._allow_override = allow_override
        for index, entry in enumerate(config.credentials):
            self._new_material(index, entry)

    def __bool__(self) -> bool:
        return bool(self._keys or self._credentials)

    async def plant(self, store: KeyStore, now: float) -> None:
        """Bring the store to what the seeds say; credentials first, because keys point at them.

        What the API made under the same id is left alone. Raises KeyStoreFailed or KeySettingInvalid.
        """
        for index, entry in enumerate(self._credentials):
            await self._plant_credential(store, index, entry, now)
        for index, record in enumerate(self._keys):
            try:
                await self._plant_key(store, record, now)
            except UnknownCredential as error:
                reason = f"there is no credential {error.credential_id}"
                raise KeySettingInvalid(f"{_SEED}.keys[{index}].credential_id", reason) from None

    async def _plant_key(self, store: KeyStore, seed: KeyRecord, now: float) -> None:
        for _ in range(_MOST_RACES):
            found = await store.get_key(seed.key_id)
            try:
                if found is None:
                    await store.insert_key(_at(seed, now))
                elif found.source == "config" and not self._allow_override:
                    after = seeded(found, seed, now)
                    if after is not None:
                        await store.swap_key(after, found.policy_revision)
            except (KeyRecordExists, KeyRevisionConflict):
                # Another daemon plants the same seeds.
                continue
            return

    async def _plant_credential(self, store: KeyStore, index: int, entry: CredentialSeed, now: float) -> None:
        found = await store.get_credential(entry.id)
        if found is None:
            record = _credential(entry, self._new_material(index, entry), now)
            try:
                await store.insert_credential(record)
            except KeyRecordExists:
                return
        elif found.source == "config" and not self._same(found, entry):
            after = _credential(entry, self._new_material(index, entry), now)
            await store.replace_credential(_kept(after, found))

    def _same(self, found: CredentialRecord, entry: CredentialSeed) -> bool:
        if _credential(entry, found.material, 0.0) != _without_times(found):
            return False
        if entry.secret is None:
            return found.storage == "vault_ref" and getattr(found.material, "reference", None) == entry.vault_ref
        if not isinstance(found.material, Envelope):
            return False
        try:
            return unseal(found.material, found.id, self._material) == entry.secret.get_secret_value()
        except KeyMaterialUnusable:
            # Sealed under another master key; the seed is the way to mend that.
            return False

    def _new_material(self, index: int, entry: CredentialSeed) -> Material:
        secret = None if entry.secret is None else entry.secret.get_secret_value()
        try:
            material = new_material(entry.id, entry.vault_ref, secret, self._material)
        except InvalidBody as error:
            raise KeySettingInvalid(f"{_SEED}.credentials[{index}]", error.reason) from None
        if material is None:
            raise KeySettingInvalid(f"{_SEED}.credentials[{index}]", "needs secret or vault_ref")
        return material


def _seed_record(index: int, entry: KeySeed, pepper: bytes) -> KeyRecord:
    token = parse(entry.key.get_secret_value())
    if token is None:
        reason = "must be a token: sbp_<16 hex>_<64 hex>, or sk-<id>-<secret of at least 16 letters and digits>"
        raise KeySettingInvalid(f"{_SEED}.keys[{index}].key", reason)
    if token.key_id != entry.id:
        raise KeySettingInvalid(f"{_SEED}.keys[{index}].id", "is not the id in the token")
    secret_hash = verifier(token.secret, pepper)
    return KeyRecord(
        key_id=entry.id,
        secret_hash=secret_hash,
        seed_hash=secret_hash,
        name=entry.name,
        max_requests_per_minute=entry.max_requests_per_minute,
        max_tokens_per_minute=entry.max_tokens_per_minute,
        priority=entry.priority,
        budget=KeyBudget(entry.budget.max_tokens, entry.budget.max_cost_usd),
        allowed_models=tuple(entry.allowed_models),
        blocked_models=tuple(entry.blocked_models),
        allowed_providers=tuple(entry.allowed_providers),
        blocked_providers=tuple(entry.blocked_providers),
        allowed_tools=None if entry.allowed_tools is None else tuple(entry.allowed_tools),
        require_pii_redaction=tuple(entry.require_pii_redaction),
        route_to_model=entry.route_to_model,
        project=entry.project,
        user=entry.user,
        tags=tuple(entry.tags),
        metadata=entry.metadata,
        allow_content_capture=entry.allow_content_capture,
        credential_id=entry.credential_id,
        source="config",
    )


def _at(record: KeyRecord, now: float) -> KeyRecord:
    return replace(record, created_at=now, updated_at=now)


def _credential(entry: CredentialSeed, material: Material, now: float) -> CredentialRecord:
    return CredentialRecord(
        id=entry.id, provider=entry.provider, material=material, name=entry.name, header=entry.header,
        scheme=entry.scheme, created_at=now, updated_at=now, source="config",
    )  # fmt: skip


def _kept(after: CredentialRecord, found: CredentialRecord) -> CredentialRecord:
    """A seed does not bring a revoked credential back."""
    return replace(after, status=found.status, created_at=found.created_at)


def _without_times(record: CredentialRecord) -> CredentialRecord:
    return replace(record, status="active", created_at=0.0, updated_at=0.0)
