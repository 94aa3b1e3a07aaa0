"""Issues and revokes browser sessions (document 2, "Session routes").

The signing key lives as long as the process: a restart logs everybody out.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from sbproxy.admin.core.session_token import Session, sign, verify

COOKIE = "sb_admin_session"
MAX_REVOKED = 10_000


class Sessions:
    """``now`` is Unix seconds."""

    def __init__(self, now: Callable[[], float], *, max_revoked: int = MAX_REVOKED) -> None:
        self._now = now
        self._max_revoked = max_revoked
        self._key = secrets.token_bytes(32)
        self._revoked: dict[str, int] = {}

    def issue(self, username: str) -> tuple[Session, str]:
        """A new session and the token that carries it."""
        session = Session(username, int(self._now()), secrets.token_urlsafe(16), secrets.token_urlsafe(24))
        return session, sign(session, self._key)

    def find(self, token: str | None) -> Session | None:
        if not token:
            return None
        session = verify(token, self._key, self._now())
        return None if session is None or session.nonce in self._revoked else session

    def revoke(self, session: Session) -> None:
        now = self._now()
        if len(self._revoked) >= self._max_revoked:
            self._revoked = {nonce: until for nonce, until in self._revoked.items() if until > now}
        if len(self._revoked) >= self._max_revoked:
            # Forgetting one revocation would bring a dead session back; a new key ends all of them instead.
            self._key = secrets.token_bytes(32)
            self._revoked.clear()
        self._revoked[session.nonce] = session.expires_at
