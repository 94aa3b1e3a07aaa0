"""The effective document: every default filled in, secrets masked; its revision is what two nodes can compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.secret_forms import MASK, may_be_shown
from sbproxy.config.core.tree import KeyPath

SECRET_KEYS: Final = frozenset(
    [
        "api_key",
        "apikey",
        "client_secret",
        "token",
        "password",
        "password_hash",
        "secret",
        "secret_key",
        "access_key",
        "access_key_id",
        "secret_access_key",
        "aws_secret_access_key",
        "private_key",
    ]
)
"""Keys masked by their name, in opaque blocks and beside the typed secrets (contracts section 2)."""


def effective(config: SbConfig, references: Mapping[KeyPath, str]) -> dict[str, Any]:
    """Plain data of the whole document. A secret is shown only where ``references`` says what was written."""
    shown = _shown(config, (), references)
    return dict(shown)


def revision_of(document: dict[str, Any]) -> str:
    """The first 12 hex characters of the SHA-256 of the document's sorted JSON (contracts section 3, drift)."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _shown(value: Any, path: KeyPath, references: Mapping[KeyPath, str]) -> Any:
    if isinstance(value, SecretStr):
        return references.get(path, MASK)
    if isinstance(value, BaseModel):
        return {name: _named(name, getattr(value, name), path, references) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: _named(key, item, path, references) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item, (*path, index), references) for index, item in enumerate(value)]
    return value


def _named(name: str, value: Any, path: KeyPath, references: Mapping[KeyPath, str]) -> Any:
    literal = isinstance(value, str | int | float) and not isinstance(value, bool)
    if literal and (name in SECRET_KEYS or path[-1:] == ("headers",)) and not may_be_shown(str(value)):
        return MASK
    return _shown(value, (*path, name), references)
