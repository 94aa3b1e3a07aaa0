"""Caches of other programs on this machine, and which models of the catalog could be imported from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sbproxy.artifacts.core.foreign import Origin, places
from sbproxy.artifacts.core.model import Ready
from sbproxy.artifacts.foreign_caches import ForeignCaches
from sbproxy.errors.artifacts import ArtifactError
from sbproxy.errors.catalog import CatalogError
from sbproxy_cli.local import Local


def foreign_caches(local: Local, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """One summary a source whose folder exists; ``importable`` are catalog ids with all their files there by size,
    of models that are not cached yet. Reads no file."""
    where = places(environ)
    folders: dict[Origin, tuple[str, ...]] = {
        "ollama": where.ollama,
        "lm-studio": where.lm_studio,
        "hf hub": where.hub,
    }
    found = {
        source: here for source, paths in folders.items() if (here := [path for path in paths if Path(path).is_dir()])
    }
    importable = _importable(local, environ) if found else {}
    return [
        {"source": source, "path": here[0], "paths": here, "importable": importable.get(source, [])}
        for source, here in found.items()
    ]


def _importable(local: Local, environ: Mapping[str, str]) -> dict[Origin, list[str]]:
    caches = ForeignCaches(environ)
    found: dict[Origin, list[str]] = {}
    for model in local.foundation.catalog.models.values():
        try:
            artifact = local.resolve(model.id, None, "auto")
            cached = isinstance(local.foundation.store.state(artifact), Ready)
        except (CatalogError, ArtifactError):
            continue
        if artifact.variant.unverified or cached:
            continue
        origin = caches.origin_of(artifact, list(artifact.variant.files))
        if origin is not None:
            found.setdefault(origin, []).append(model.id)
    return found
