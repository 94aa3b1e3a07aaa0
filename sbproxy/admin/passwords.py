"""The stored form of an operator's password: ``scrypt$<n>$<r>$<p>$<salt>$<hash>``, salt and hash in base64.

Hashing takes tens of milliseconds and as many MiB on purpose; call it in a worker thread.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

_N, _R, _P = 2**14, 8, 1
_SALT_BYTES = 16
_HASH_BYTES = 32
# 64 MiB: what one check may cost, whatever a configuration says.
_MAX_MEMORY = 64 << 20


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """Parsed and within bounds. Raises ValueError with the reason when the text is not."""

    n: int
    r: int
    p: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        parts = text.split("$")
        if len(parts) != 6 or parts[0] != "scrypt":
            raise ValueError("it must have the form scrypt$n$r$p$salt$hash")
        try:
            n, r, p = (int(part) for part in parts[1:4])
            salt, digest = (base64.b64decode(part, validate=True) for part in parts[4:])
        except (ValueError, binascii.Error):
            raise ValueError("its numbers or its base64 cannot be read") from None
        if n < 2**10 or n & (n - 1) or not 1 <= r <= 32 or not 1 <= p <= 4 or 128 * n * r > _MAX_MEMORY:
            raise ValueError("n must be a power of two from 1024 on, r 1 to 32, p 1 to 4, and 128*n*r at most 64 MiB")
        if len(salt) < 8 or not 16 <= len(digest) <= 64:
            raise ValueError("the salt needs 8 bytes or more, the hash 16 to 64")
        return cls(n, r, p, salt, digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(raw).decode() for raw in (self.salt, self.digest))
        return f"scrypt${self.n}${self.r}${self.p}${salt}${digest}"


def unmatchable(beside: Iterable[PasswordHash]) -> PasswordHash:
    """A hash that no password has, as costly to check as the costliest ``beside`` it, or as a new one."""
    costs = ((stored.n, stored.r, stored.p) for stored in beside)
    n, r, p = max(costs, key=lambda cost: cost[0] * cost[1] * cost[2], default=(_N, _R, _P))
    return PasswordHash(n, r, p, os.urandom(_SALT_BYTES), os.urandom(_HASH_BYTES))


def hash_password(password: str) -> str:
    """The text to put into ``password_hash``."""
    salt = os.urandom(_SALT_BYTES)
    digest = Scrypt(salt=salt, length=_HASH_BYTES, n=_N, r=_R, p=_P).derive(password.encode())
    return str(PasswordHash(_N, _R, _P, salt, digest))


def verify_password(password: str, stored: PasswordHash) -> bool:
    """Whether ``password`` has this hash; takes the same time either way."""
    kdf = Scrypt(salt=stored.salt, length=len(stored.digest), n=stored.n, r=stored.r, p=stored.p)
    return hmac.compare_digest(kdf.derive(password.encode()), stored.digest)
