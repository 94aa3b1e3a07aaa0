"""Chooses the credential of a hub source. It is transport-only: it goes into one header and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from sbproxy.artifacts.core.source import LOOPBACK_HOSTS
from sbproxy.catalog.core.model import CatalogModel
from sbproxy.errors.artifacts import SourceCredentialInvalid

DEFAULT_HUB = "https://huggingface.co"
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")


class Token:
    """A secret that shows itself only as a header value."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "Token([REDACTED])"

    def header(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._value}"}


def hub_address(configured: str | None, environ: Mapping[str, str]) -> str:
    """The hub's base address: the argument, else ``HF_ENDPOINT``, else the public hub."""
    address = configured or environ.get("HF_ENDPOINT") or DEFAULT_HUB
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        shown = f"{parts.scheme}://{parts.hostname or '?'}"
        raise SourceCredentialInvalid(shown, "a hub address is http(s)://host[:port][/path] without user or query")
    return address.rstrip("/")


def hub_token(model: CatalogModel, hub_url: str, environ: Mapping[str, str]) -> Token | None:
    """The model's ``hf_token`` (a ``${VAR}`` reference), else HF_TOKEN, else HUGGING_FACE_HUB_TOKEN.

    Raises SourceCredentialInvalid for a literal, an unset variable, or a hub that would get it unencrypted.
    """
    value = _catalog_token(model, environ) or environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")
    if not value or not value.strip():
        return None
    if not _TOKEN.fullmatch(value.strip()):
        raise SourceCredentialInvalid(hub_url, "the token holds characters that no token has; set HF_TOKEN anew")
    parts = urlsplit(hub_url)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK_HOSTS:
        raise SourceCredentialInvalid(hub_url, "it would travel unencrypted; use an https hub or unset HF_TOKEN")
    return Token(value.strip())


def _catalog_token(model: CatalogModel, environ: Mapping[str, str]) -> str | None:
    if model.hf_token is None:
        return None
    reference = _REFERENCE.fullmatch(model.hf_token.strip())
    if reference is None:
        raise SourceCredentialInvalid(
            f"model {model.id}", "hf_token must name an environment variable, written ${NAME}, never the token itself"
        )
    value = environ.get(reference[1])
    if not value:
        raise SourceCredentialInvalid(f"model {model.id}", f"the environment variable {reference[1]} is not set")
    return value
