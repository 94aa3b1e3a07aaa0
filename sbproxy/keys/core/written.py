"""Records as the JSON text that both stores keep. Unknown keys of a newer version are left alone, not refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sbproxy.keys.core.policy import selector_json
from sbproxy.keys.core.record import CredentialRecord, Envelope, KeyBudget, KeyRecord, PrincipalSelector, VaultRef

_KEY_FIELDS = tuple(entry.name for entry in fields(KeyRecord))
_CREDENTIAL_FIELDS = tuple(entry.name for entry in fields(CredentialRecord))
_TUPLES = frozenset(
    (
        "allowed_models", "blocked_models", "allowed_providers", "blocked_providers", "allowed_tools",
        "require_pii_redaction", "inject_tools", "tags",
    )
)  # fmt: skip


def encode_key(record: KeyRecord) -> str:
    said = {name: getattr(record, name) for name in _KEY_FIELDS}
    said["budget"] = {"max_tokens": record.budget.max_tokens, "max_cost_usd": record.budget.max_cost_usd}
    said["principal_selectors"] = [selector_json(selector) for selector in record.principal_selectors]
    return _text(said)


def decode_key(text: str | bytes) -> KeyRecord:
    """Raises ValueError for what was not written by :func:`encode_key`."""
    said = _object(text)
    values = {name: said[name] for name in _KEY_FIELDS if name in said}
    for name in _TUPLES & values.keys():
        values[name] = None if values[name] is None else tuple(values[name])
    try:
        values["budget"] = KeyBudget(**values.get("budget", {}))
        values["principal_selectors"] = tuple(PrincipalSelector(**one) for one in values.get("principal_selectors", ()))
        return KeyRecord(**values)
    except TypeError as error:
        raise ValueError(f"not a key record: {error}") from None


def encode_credential(record: CredentialRecord) -> str:
    said = {name: getattr(record, name) for name in _CREDENTIAL_FIELDS}
    said["material"] = _material(record.material)
    return _text(said)


def decode_credential(text: str | bytes) -> CredentialRecord:
    """Raises ValueError for what was not written by :func:`encode_credential`."""
    said = _object(text)
    values = {name: said[name] for name in _CREDENTIAL_FIELDS if name in said}
    material = said.get("material")
    try:
        if not isinstance(material, dict):
            raise TypeError("it has no material")
        sealed = "sealed" in material
        values["material"] = Envelope(**material) if sealed else VaultRef(**material)
        return CredentialRecord(**values)
    except TypeError as error:
        raise ValueError(f"not a credential record: {error}") from None


def _material(material: VaultRef | Envelope) -> dict[str, str]:
    if isinstance(material, VaultRef):
        return {"reference": material.reference}
    return {"wrapped_key": material.wrapped_key, "sealed": material.sealed}


def _text(said: Mapping[str, Any]) -> str:
    return json.dumps(said, separators=(",", ":"), default=dict)


def _object(text: str | bytes) -> dict[str, Any]:
    said = json.loads(text)
    if not isinstance(said, dict):
        raise ValueError("not a record")
    return said
