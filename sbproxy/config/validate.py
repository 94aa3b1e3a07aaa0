"""What ``sbproxy validate`` checks: the document, its catalog, and the names that cross between the two.

Opens sb.yml and the catalog file, nothing else; resolves no secret (contracts section 9). The catalog comes in as a
function, because this room knows no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.references import reference_findings
from sbproxy.config.load import Loaded, load_file
from sbproxy.errors import SbproxyError
from sbproxy.errors.config import ConfigInvalid

CatalogIndex = Mapping[str, tuple[str, ...]]
"""Model id to its variant ids."""

ReadCatalog = Callable[[Path | None], CatalogIndex]
"""Given the configured catalog file, or None for the built-in one; raises a leaf of CatalogError.

Implemented by ``sbproxy.catalog.document.catalog_index``.
"""


def validate_file(path: Path, environ: Mapping[str, str], read_catalog: ReadCatalog) -> Loaded:
    """Raises ConfigUnreadable, ConfigInvalid with every problem, or else what ``read_catalog`` raises."""
    failed: list[SbproxyError] = []

    def references(config: SbConfig) -> Iterator[Finding]:
        catalog_file = config.proxy.model_host.catalog_file
        try:
            models = read_catalog(Path(catalog_file) if catalog_file else None)
        except SbproxyError as error:
            failed.append(error)
        else:
            yield from reference_findings(config, models)

    loaded = load_file(path, environ, resolve_secrets=False, further=references)
    if failed:
        raise failed[0]
    return loaded


def check_references(loaded: Loaded, models: CatalogIndex) -> None:
    """Raise ConfigInvalid when a deployment names a model or variant that ``models`` lacks."""
    problems = tuple(loaded.problem(finding) for finding in reference_findings(loaded.config, models))
    if problems:
        raise ConfigInvalid(str(loaded.path), problems)
