"""The next revision of a record: what a PATCH says, a lifecycle action, a rotation (contracts section 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from sbproxy.errors.admin import InvalidBody
from sbproxy.errors.keys import KeyRevisionConflict, KeyTerminal
from sbproxy.keys.core.policy_fields import UNENFORCED
from sbproxy.keys.core.record import KeyRecord, KeyStatus, PrincipalSelector
from sbproxy.keys.core.times import parse_rfc3339

ACTION_STATUS: Final[Mapping[str, KeyStatus]] = {"revoke": "revoked", "block": "blocked", "unblock": "active"}


def check_current(record: KeyRecord, expected_revision: int | None) -> None:
    """Whether a change may be made to the record at all. Raises KeyTerminal or KeyRevisionConflict."""
    if record.status == "revoked":
        raise KeyTerminal(record.key_id, record.policy_revision)
    if expected_revision is not None and expected_revision != record.policy_revision:
        raise KeyRevisionConflict(record.key_id, expected_revision, record.policy_revision)


def patched(record: KeyRecord, said: Mapping[str, Any]) -> KeyRecord:
    """``said``: PATCH field to value, types checked. The revision stays. Raises InvalidBody."""
    values: dict[str, Any] = {}
    budget: dict[str, Any] = {}
    for name, value in said.items():
        if name in UNENFORCED and value is not None:
            raise InvalidBody(f"{name} is not supported by this version")
        if name in _BUDGET:
            budget[_BUDGET[name]] = value
        else:
            values[_RENAMED.get(name, name)] = _READ[name](value) if name in _READ and value is not None else value
    if budget:
        values["budget"] = replace(record.budget, **budget)
    return replace(record, **values)


def next_revision(record: KeyRecord, now: float, **changes: Any) -> KeyRecord:
    """One write further."""
    return replace(record, policy_revision=record.policy_revision + 1, updated_at=now, **changes)


def with_status(record: KeyRecord, status: KeyStatus, now: float) -> KeyRecord:
    return next_revision(record, now, status=status)


def rotated(record: KeyRecord, secret_hash: str, grace_secs: int, now: float) -> KeyRecord:
    """A new secret; the one before it opens until ``now + grace_secs``. An older one is gone at once."""
    return next_revision(
        record,
        now,
        secret_hash=secret_hash,
        prev_secret_hash=record.secret_hash if grace_secs else None,
        prev_hash_expires_at=now + grace_secs if grace_secs else None,
    )


def seeded(record: KeyRecord, seed: KeyRecord, now: float) -> KeyRecord | None:
    """A stored record brought to what its seed says; None when it is so already.

    Its status stays, so that a seed does not bring a revoked key back, and so does a secret that was rotated since,
    unless the seed names another token now.
    """
    kept = replace(
        seed,
        policy_revision=record.policy_revision,
        status=record.status,
        created_at=record.created_at,
        updated_at=record.updated_at,
        expires_at=record.expires_at,
    )
    if seed.seed_hash == record.seed_hash:
        kept = replace(
            kept,
            secret_hash=record.secret_hash,
            prev_secret_hash=record.prev_secret_hash,
            prev_hash_expires_at=record.prev_hash_expires_at,
        )
    return None if kept == record else next_revision(kept, now)


def _expiry(text: str) -> float:
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        raise InvalidBody(f"expires_at: {error}") from None


def _selectors(said: list[Mapping[str, Any]]) -> tuple[PrincipalSelector, ...]:
    if any(not any(one.values()) for one in said):
        raise InvalidBody("principal_selectors: a selector that names nothing would match everybody")
    return tuple(PrincipalSelector(**one) for one in said)


_BUDGET: Final = {"max_budget_tokens": "max_tokens", "max_budget_usd": "max_cost_usd"}
_RENAMED: Final = {"tenant": "tenant_id"}
_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "expires_at": _expiry,
    "principal_selectors": _selectors,
    **dict.fromkeys(
        (
            "allowed_models", "blocked_models", "allowed_providers", "blocked_providers", "allowed_tools",
            "require_pii_redaction", "inject_tools", "tags",
        ),
        tuple,
    ),
    "metadata": dict,
}  # fmt: skip
