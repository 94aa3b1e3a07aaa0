"""The text form of a browser session: what it says, its signature, when it is over.

Randomness, the clock and revocation are ``sbproxy.admin.sessions``'.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass

SESSION_SECONDS = 8 * 3600
MAX_TOKEN = 1024


@dataclass(frozen=True, slots=True)
class Session:
    """Who logged in and when (Unix seconds). ``nonce`` names the session, ``csrf`` is what a form must echo."""

    username: str
    issued_at: int
    nonce: str
    csrf: str

    @property
    def expires_at(self) -> int:
        return self.issued_at + SESSION_SECONDS


def sign(session: Session, key: bytes) -> str:
    """``<payload>.<mac>``, both URL-safe base64."""
    payload = json.dumps([session.username, session.issued_at, session.nonce, session.csrf]).encode()
    return f"{_encode(payload)}.{_encode(_mac(payload, key))}"


def verify(token: str, key: bytes, now: float) -> Session | None:
    """The session of an unforged token that is not over; None for anything else."""
    if len(token) > MAX_TOKEN:
        return None
    payload_text, dot, mac_text = token.partition(".")
    payload, mac = _decode(payload_text), _decode(mac_text)
    if not dot or payload is None or mac is None or not hmac.compare_digest(mac, _mac(payload, key)):
        return None
    session = Session(*json.loads(payload))
    return session if session.issued_at <= now + 60 and now < session.expires_at else None


def _mac(payload: bytes, key: bytes) -> bytes:
    return hmac.new(key, payload, hashlib.sha256).digest()


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
