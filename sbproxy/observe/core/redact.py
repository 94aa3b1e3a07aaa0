"""Decides what is a secret in a line of text, and masks it (field report 74: redact at the sink)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_plus

MASK = "[REDACTED]"
MIN_SECRET = 4
"""Shorter values are not searched for: masking every "ab" would make a log unreadable and protect nothing."""
MAX_SECRETS = 4096

_SCHEMES = re.compile(r"(?i)\b(bearer|basic)(\s+)(?!\[REDACTED\])[A-Za-z0-9+/._~=-]{3,}")
_HEADERS = re.compile(
    r"(?i)(\b(?:proxy-authorization|authorization|set-cookie|cookie|x-api-key|x-csrf-token)['\"]?\s*[:=]\s*)"
    r"(?!\s*\[REDACTED\])(['\"]?)[^'\"\r\n,}]+"
)
# Parts of the names of query parameters: presigned addresses (sig, X-Amz-Signature, credential), OAuth (code), keys.
_SECRET_WORDS = ("auth", "code", "cred", "jwt", "key", "pass", "pwd", "secret", "session", "sig", "token")
_PARAMETERS = re.compile(r"(?<![^?&;])([^=&;]+)=([^&;]*)")
_PARAMETERS_IN_TEXT = re.compile(r"(?<=[?&])([^=&?#\s'\"<>]+)=([^&#\s'\"<>]+)")


def names_secret(parameter: str) -> bool:
    """Whether a query parameter of this name, percent-encoded or not, holds a secret. A wrong yes costs little."""
    name = unquote_plus(parameter).lower()
    return any(word in name for word in _SECRET_WORDS)


def redact_query(query: str) -> str:
    """A query without its ``?``: every value masked whose parameter names a secret; all else as it was."""
    return _PARAMETERS.sub(_masked, query)


def _masked(parameter: re.Match[str]) -> str:
    return f"{parameter[1]}={MASK}" if names_secret(parameter[1]) else parameter[0]


class Redactor:
    """Masks credentials by their shape, and the exact values that were registered when they were loaded."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self.register(secrets)

    def __repr__(self) -> str:
        return f"Redactor({len(self._secrets)} secrets)"

    def register(self, secrets: Iterable[str]) -> None:
        """Add values to mask. Values of several lines are masked line by line, as a log shows them."""
        lines = {line for secret in secrets for line in secret.splitlines()}
        new = {line for line in lines if len(line) >= MIN_SECRET} - self._secrets
        if not new:
            return
        if len(self._secrets) + len(new) > MAX_SECRETS:
            raise ValueError(f"more than {MAX_SECRETS} secrets to mask")
        self._secrets |= new
        # The longest first, or a secret that begins with another one would keep its tail.
        ordered = sorted(self._secrets, key=lambda value: (-len(value), value))
        self._known = re.compile("|".join(re.escape(value) for value in ordered))

    def redact(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _PARAMETERS_IN_TEXT.sub(_masked, text)
        text = _HEADERS.sub(rf"\1\2{MASK}", text)
        return _SCHEMES.sub(rf"\1\2{MASK}", text)
