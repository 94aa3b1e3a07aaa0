"""What a secret position says: a literal, a reference that can be followed, or a form that is refused by name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sbproxy.config.core.interpolation import is_reference

MASK = "***MASKED***"
REDACTED = "[REDACTED]"
"""What ``GET /admin/config`` shows instead of a secret."""

_ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
BACKENDS = ("secret", "vault", "awssm", "gcpsm", "azurekv", "k8ssecret", "secretfile")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Literal:
    """The text itself; also what a ``${VAR}`` held."""


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """``env:NAME``."""

    name: str


@dataclass(frozen=True, slots=True)
class FromFile:
    """``file:/path``; the path is absolute."""

    path: str


def secret_form(written: str, text: str) -> Literal | FromEnvironment | FromFile:
    """Decide by what is written, so that the content of a variable is never followed as a reference.

    ``text`` is ``written`` with its variables filled in. Raises ValueError with the reason of a refusal.
    """
    if written.startswith("env:"):
        match = _ENV.fullmatch(text)
        if match is None:
            raise ValueError("env: must be followed by the name of an environment variable")
        return FromEnvironment(match[1])
    if written.startswith("file:"):
        path = text.removeprefix("file:")
        if not path.startswith("/") or _CONTROL.search(path):
            raise ValueError("file: must be followed by an absolute path")
        return FromFile(path)
    for backend in BACKENDS:
        if written.startswith(f"{backend}://"):
            raise ValueError(f"{backend}:// is not supported by this version; use ${{VAR}}, env:NAME or file:/path")
    if written.startswith("secret:"):
        raise ValueError("secret:<name> was removed; use ${VAR}, env:NAME or file:/path")
    if written == MASK:
        raise ValueError("this is the mask that `sbproxy config print` shows, not a secret")
    if written == REDACTED:
        raise ValueError("this is the mask of GET /admin/config, not a secret; write a reference such as ${VAR}")
    return Literal()


def refusal(value: str) -> str | None:
    """Why a resolved secret cannot be used, or None. Never repeats the value."""
    if not value:
        return "the secret is empty"
    if _CONTROL.search(value):
        return "the secret holds control characters"
    return None


def may_be_shown(written: str) -> bool:
    """Whether ``config print`` shows the text: a reference, which tells where the secret is and not what it is."""
    return is_reference(written) or written.startswith(("env:", "file:"))
