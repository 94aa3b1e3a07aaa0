"""Token text and the verifiers of secrets (contracts section 7). Randomness and the pepper come from outside."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field
from hashlib import blake2b

from sbproxy.keys.core.record import KeyRecord

MAX_TOKEN = 512
"""Longest token in bytes that is looked at; ours have 85."""
MINTED = "sbp_"
_MINTED = re.compile(r"sbp_([0-9a-f]{16})_([0-9a-f]{64})")
# The id may hold dashes, the secret may not.
_LEGACY = re.compile(r"sk-([A-Za-z0-9._-]{1,128})-([A-Za-z0-9_]{16,256})")
_ROTATABLE = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Token:
    """The two parts of a presented token."""

    key_id: str
    secret: str = field(repr=False)


def mint(key_id: str, secret: str) -> str:
    """The text of a token; 16 and 64 lower-case hexadecimal characters, else ValueError."""
    text = f"{MINTED}{key_id}_{secret}"
    if not _MINTED.fullmatch(text):
        raise ValueError("a token is made of an id of 16 and a secret of 64 hexadecimal characters")
    return text


def parse(text: str) -> Token | None:
    """A minted or a legacy (``sk-<id>-<secret>``) token; None for everything else, damaged ones included."""
    match = _MINTED.fullmatch(text) or _LEGACY.fullmatch(text)
    return Token(match[1], match[2]) if match else None


def rotatable(key_id: str) -> bool:
    """Whether a token can be minted for this id; ids that a configuration chose are often not so."""
    return _ROTATABLE.fullmatch(key_id) is not None


def verifier(secret: str, pepper: bytes) -> str:
    """What is stored of a secret: ``hmac-sha256.v1``, hexadecimal."""
    return hmac.digest(pepper, secret.encode(), "sha256").hex()


def token_digest(token: bytes, pepper: bytes) -> bytes:
    """What stands for a whole token in memory, never in a store: a keyed BLAKE2b, at a third of an HMAC's cost."""
    return blake2b(token, key=pepper, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Match:
    """A secret that fits. ``until``: when it stops doing so by itself (the grace window of a rotation), or None."""

    until: float | None


def matches(record: KeyRecord, secret_hash: str, now: float) -> Match | None:
    """Compare a presented secret's verifier with the record's, in constant time; None when neither fits."""
    current = hmac.compare_digest(record.secret_hash, secret_hash)
    prior = hmac.compare_digest(record.prev_secret_hash or "", secret_hash)
    if current:
        return Match(None)
    if prior and record.rotation_pending(now):
        return Match(record.prev_hash_expires_at)
    return None
