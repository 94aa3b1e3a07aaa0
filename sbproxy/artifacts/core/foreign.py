"""Decides where other programs keep a file that the catalog names: Ollama, LM Studio, the Hugging Face hub cache.

Addresses only: whether something is there, and whether it is what it should be, is found out by ``foreign_caches``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from sbproxy.artifacts.core.source import HubRepo
from sbproxy.catalog.core.model import CatalogFile

Origin = Literal["ollama", "lm-studio", "hf hub"]
"""As the status of ``models list`` names them (contracts section 9)."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders to look below, all absolute; none of them need exist."""

    ollama: tuple[str, ...]
    lm_studio: tuple[str, ...]
    hub: tuple[str, ...]


def places(environ: Mapping[str, str]) -> Places:
    """What the environment says, else the defaults below HOME; nothing without either."""
    home = environ.get("HOME", "")
    ollama = environ.get("OLLAMA_MODELS") or _below(home, ".ollama/models")
    hub_home = environ.get("HF_HOME") or _below(environ.get("XDG_CACHE_HOME") or _below(home, ".cache"), "huggingface")
    hub = environ.get("HF_HUB_CACHE") or _below(hub_home, "hub")
    studio = (_below(home, ".lmstudio/models"), _below(home, ".cache/lm-studio/models"))
    return Places(_absolute(ollama), _absolute(*studio), _absolute(hub))


def hub_folder(source: HubRepo) -> str:
    return f"models--{source.repo.replace('/', '--')}"


def ollama_blobs(file: CatalogFile) -> tuple[str, str]:
    """Names that Ollama gives to a blob, after its SHA-256, the older one last; a partial one has a longer name."""
    return f"blobs/sha256-{file.sha256}", f"blobs/sha256:{file.sha256}"


def same_name(path: str, file: CatalogFile) -> bool:
    return PurePosixPath(path).name == PurePosixPath(file.path).name


def _below(folder: str, more: str) -> str:
    return f"{folder.rstrip('/')}/{more}" if folder else ""


def _absolute(*paths: str) -> tuple[str, ...]:
    return tuple(path for path in paths if path.startswith("/"))
