"""Which engines this version can drive, by the names of contracts section 14."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.config.core.model_host import EngineConfig, EngineName
from sbproxy.engines.core.model import Availability, EngineBinary, LaunchSpec
from sbproxy.engines.driver import AcquireProgress, EngineDriver, EngineProcess
from sbproxy.engines.llama_cpp import LlamaCppDriver
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.errors.engines import EngineBlocked

NAMES: tuple[EngineName, ...] = ("llama_cpp", "vllm", "sglang", "mistralrs")


class UnsupportedDriver:
    """An :class:`EngineDriver` for a name that documents know and this version cannot drive: always blocked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._reason = "it is not supported by this version; llama_cpp is"

    def availability(self) -> Availability:
        return Availability(self.name, "blocked", self._reason)

    def acquire(self, progress: AcquireProgress) -> EngineBinary:
        raise EngineBlocked(self.name, self._reason)

    def check(self, artifact: ResolvedArtifact, spec: LaunchSpec, binary: EngineBinary) -> None:
        raise EngineBlocked(self.name, self._reason)

    async def launch(self, binary: EngineBinary, spec: LaunchSpec) -> EngineProcess:
        raise EngineBlocked(self.name, self._reason)


def engine_drivers(
    configs: Mapping[EngineName, EngineConfig],
    *,
    root: Path,
    ownership: OwnershipLedger,
    environ: Mapping[str, str],
    network: bool = True,
) -> dict[str, EngineDriver]:
    """One driver a known name, configured or with its defaults. ``root`` is the cache root: builds go to
    ``engines/`` in it, the folders of live processes (keys, logs) to ``engines/run/``."""
    drivers: dict[str, EngineDriver] = {name: UnsupportedDriver(name) for name in NAMES}
    drivers["llama_cpp"] = LlamaCppDriver(
        configs.get("llama_cpp", EngineConfig()),
        engines_root=root / "engines",
        run_dir=root / "engines" / "run",
        ownership=ownership,
        environ=environ,
        network=network,
    )
    return drivers
