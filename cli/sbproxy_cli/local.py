"""What the commands stand on that work without a daemon: configuration, catalog, store, drivers, devices."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbproxy.catalog.core.model import ResolvedArtifact, WorkerFacts
    from sbproxy.config.core.model_host import ModelHostConfig
    from sbproxy.config.load import Loaded
    from sbproxy.daemon.foundation import Foundation
    from sbproxy.devices.core.model import Machine


class Local:
    """``loaded`` is None where no configuration was named; the foundation then has every default."""

    def __init__(self, foundation: Foundation, loaded: Loaded | None) -> None:
        self.foundation = foundation
        self.loaded = loaded

    @property
    def host(self) -> ModelHostConfig:
        """The configuration's model_host block, or one with every default."""
        from sbproxy.config.core.model_host import ModelHostConfig

        return self.loaded.config.proxy.model_host if self.loaded else ModelHostConfig()

    @functools.cached_property
    def machine(self) -> Machine:
        return self.foundation.devices.probe()

    @functools.cached_property
    def _facts(self) -> WorkerFacts:
        # What is free at this moment decides about a start, not about which files belong to this machine.
        return dataclasses.replace(self.foundation.worker_facts(), memory_bytes=None)

    def resolve(self, model: str, variant: str | None, engine: str) -> ResolvedArtifact:
        """The exact artifact for this kind of machine, whatever is free now. Raises leaves of CatalogError."""
        from sbproxy.catalog.core.resolve import resolve

        return resolve(self.foundation.catalog, model, variant, self._facts, engine)


def open_local(config: Path | None, *, cache_dir: Path | None = None, catalog_file: Path | None = None) -> Local:
    """Read the configuration if one is named, and what it stands on. Raises leaves of ConfigError, CatalogError.

    The cache place of a named configuration holds for every verb (contracts section 0, row 11).
    """
    from sbproxy.config.load import load_file
    from sbproxy.daemon.foundation import Foundation

    # Nothing here speaks to anybody in the name of the configuration, so its secrets need not be set.
    loaded = load_file(config, os.environ, resolve_secrets=False) if config is not None else None
    foundation = Foundation.from_config(
        loaded,
        environ=os.environ,
        cache_dir=cache_dir.absolute() if cache_dir else None,
        catalog_file=catalog_file.absolute() if catalog_file else None,
    )
    return Local(foundation, loaded)
