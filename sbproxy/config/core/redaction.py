"""Decides what the configuration editor shows of a document's text: which values are secrets, by key name or by shape.

Where the values stand in the text is found by ``sbproxy.config.redacted_text`` (contracts section 2).
"""

from __future__ import annotations

import re
from typing import Final

from sbproxy.config.core.effective import SECRET_KEYS
from sbproxy.config.core.secret_forms import BACKENDS, REDACTED, may_be_shown
from sbproxy.config.core.shape import is_secret
from sbproxy.config.core.tree import KeyPath

# The tokens of well-known issuers, wherever they stand, comments included.
_SHAPES: Final = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"sk-[A-Za-z0-9_-]{16,}|sbp_[0-9a-f]{16}_[0-9a-f]{64}|hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}"
    r"|AIza[A-Za-z0-9_-]{35}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}"
    r")"
)
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_SCHEME: Final = re.compile(r"(?i)\b(bearer|basic)([ \t]+)(?!\[REDACTED\]|\$\{)[A-Za-z0-9+/._~=-]{8,}")
_IN_URL: Final = re.compile(r"(://[^/\s:@'\"]*:)(?!\$\{)[^@/\s'\"]+(?=@)")
_KEY: Final = re.compile(
    rf"(?i)^(?P<head>.*?\b(?:{'|'.join(sorted(SECRET_KEYS | {'headers'}, key=len, reverse=True))})['\"]?[ \t]*:).*$"
)


def hides(path: KeyPath, written: str) -> bool:
    """Whether the value at ``path`` is a secret literal. References stay: they tell where a secret is, not what."""
    if not written or may_be_shown(written) or written.startswith(tuple(f"{each}://" for each in BACKENDS)):
        return False
    names = [step for step in path if isinstance(step, str)]
    return is_secret(path) or "headers" in names[:-1] or (bool(names) and names[-1] in SECRET_KEYS)


def without_shapes(text: str) -> str:
    """``text`` with every token of a known shape masked, wherever it stands."""
    text = _PEM.sub(REDACTED, text)
    text = _SHAPES.sub(REDACTED, text)
    text = _IN_URL.sub(rf"\1{REDACTED}", text)
    return _SCHEME.sub(rf"\1\2{REDACTED}", text)


def masked_lines(text: str) -> str:
    """For text that is no YAML any more: all behind a secret key on its line is masked, and all lines under it."""
    shown: list[str] = []
    deeper_than: int | None = None
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        if deeper_than is not None and (not line.strip() or indent > deeper_than):
            shown.append(f"{line[:indent]}{REDACTED}" if line.strip() else line)
            continue
        found = _KEY.match(line)
        deeper_than = indent if found else None
        shown.append(f"{found['head']} {REDACTED}" if found else line)
    return "\n".join(shown)
