"""Where the artifact cache is: as configured, or the first default that can be used (contracts section 14)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from sbproxy.errors.config import EnvironmentInvalid

SYSTEM_ROOT = Path("/var/lib/sbproxy/models")


def writable(directory: Path) -> bool:
    """Whether ``directory`` can be written, or created by us. Looks, creates nothing."""
    for place in (directory, *directory.parents):
        if place.exists():
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False


def cache_root(
    configured: str | None, environ: Mapping[str, str], *, can_write: Callable[[Path], bool] = writable
) -> Path:
    """An absolute directory, which need not exist yet. Raises EnvironmentInvalid when the environment gives none."""
    if configured is not None:
        return Path(configured)
    hub = environ.get("HF_HOME")
    if hub:
        return _absolute("HF_HOME", hub)
    if can_write(SYSTEM_ROOT):
        return SYSTEM_ROOT
    home = environ.get("HOME")
    if not home:
        reason = f"is not set and {SYSTEM_ROOT} cannot be written; set proxy.model_host.cache.directory"
        raise EnvironmentInvalid("HOME", reason)
    return _absolute("HOME", home) / ".cache" / "sbproxy" / "models"


def _absolute(variable: str, value: str) -> Path:
    path = Path(value)
    if not path.is_absolute():
        raise EnvironmentInvalid(variable, "must be an absolute path, because the artifact cache is placed there")
    return path
