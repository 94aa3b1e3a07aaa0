"""What a configuration stands on: catalog, cache root, artifact store, engine drivers, devices.

Shared by the daemon and by the commands that work without one (``models list``, ``models pull``, ``doctor``).
Opens no listener and starts no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sbproxy.artifacts.store import FileArtifactStore
from sbproxy.catalog.core.model import Catalog, ResolvedArtifact, WorkerFacts
from sbproxy.catalog.core.resolve import resolve
from sbproxy.catalog.document import read_catalog
from sbproxy.catalog.raw_files import with_raw_references
from sbproxy.config.cache_root import cache_root as choose_cache_root
from sbproxy.config.core.model_host import ModelHostConfig
from sbproxy.config.load import Loaded
from sbproxy.daemon.checks import Checked, configured_catalog
from sbproxy.devices.inventory import MachineInventory
from sbproxy.engines.ownership import OwnershipLedger, ownership_directory
from sbproxy.engines.registry import EngineDrivers, engine_drivers


@dataclass(frozen=True, slots=True)
class Foundation:
    """The parts under a model host. ``cache_root`` need not exist yet."""

    catalog: Catalog
    cache_root: Path
    store: FileArtifactStore
    drivers: EngineDrivers
    devices: MachineInventory
    ownership: OwnershipLedger

    @classmethod
    def of(cls, checked: Checked, environ: Mapping[str, str]) -> Foundation:
        """What a daemon stands on. Blocking. Raises leaves of ConfigError."""
        return cls.from_config(checked.loaded, environ=environ, catalog=checked.catalog)

    @classmethod
    def from_config(
        cls,
        loaded: Loaded | None,
        *,
        environ: Mapping[str, str],
        cache_dir: Path | None = None,
        catalog_file: Path | None = None,
        catalog: Catalog | None = None,
    ) -> Foundation:
        """Build from a configuration, or from the defaults when there is none. Blocking: may read the catalog.

        ``cache_dir`` and ``catalog_file`` win over the configuration; ``catalog`` is that of the configuration where
        it was read before. Raises leaves of CatalogError and ConfigError.
        """
        config = loaded.config.proxy.model_host if loaded is not None else ModelHostConfig()
        chosen = read_catalog(catalog_file) if catalog_file else catalog or configured_catalog(config)
        if loaded is not None:
            chosen = with_raw_references(chosen, loaded.served.values())
        root = cache_dir or choose_cache_root(config.cache.directory, environ)
        ownership = OwnershipLedger(ownership_directory(environ, root / "engines"))
        return cls(
            catalog=chosen,
            cache_root=root,
            store=FileArtifactStore(root, environ=environ),
            drivers=engine_drivers(config.engines, root=root, ownership=ownership, environ=environ),
            devices=MachineInventory(),
            ownership=ownership,
        )

    @property
    def jobs_path(self) -> Path:
        """The job database: beside the artifacts, because commands without a daemon keep their jobs there too."""
        return self.cache_root / "jobs" / "jobs.sqlite3"

    def worker_facts(self) -> WorkerFacts:
        """What this machine offers to a resolution. Blocking: probes devices and engines."""
        machine = self.devices.probe()
        usable = {name for name, driver in self.drivers.items() if driver.availability().state in _USABLE}
        best = max(machine.accelerated or machine.devices, key=lambda device: device.total_bytes)
        return WorkerFacts(
            accelerators=frozenset(device.kind for device in machine.devices),
            engines=frozenset(usable),
            # What could ever be free here: what is free now is the memory fit's question, at each start.
            memory_bytes=best.total_bytes,
            compute_capability=best.compute_capability,
        )

    def resolve(self, model: str, variant: str | None, engine: str) -> ResolvedArtifact:
        """The exact artifact of a model name on this machine; raises leaves of CatalogError. Blocking."""
        return resolve(self.catalog, model, variant, self.worker_facts(), engine)


_USABLE = ("available", "acquirable")
