"""Looks at the files that raw references name, for their size and time, and puts all stand-ins into the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sbproxy.catalog.core.model import Catalog
from sbproxy.catalog.core.raw_reference import FileFacts, raw_model, with_models
from sbproxy.config.core.serve_notes import Served


def with_raw_references(catalog: Catalog, served: Iterable[Served]) -> Catalog:
    """``catalog`` and a stand-in for each raw reference among ``served``. Blocking, quick: reads no file."""
    models = [raw_model(raw, each.entry, _facts(raw.location)) for each in served if (raw := each.raw) is not None]
    return with_models(catalog, models) if models else catalog


def _facts(location: str) -> FileFacts | None:
    """None for a repository, which is no file, as for a file that is not there."""
    path = Path(location)
    try:
        found = path.stat() if path.is_absolute() and path.is_file() else None
    except OSError:
        return None
    return FileFacts(found.st_size, found.st_mtime_ns) if found is not None and found.st_size else None
