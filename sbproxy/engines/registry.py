"""Which engines this version can drive, by the names of contracts section 14."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from sbproxy.config.core.model_host import DeploymentConfig, EngineConfig, EngineName
from sbproxy.engines.core.overrides import overridden
from sbproxy.engines.driver import EngineDriver
from sbproxy.engines.llama_cpp import LlamaCppDriver
from sbproxy.engines.mistralrs import MistralRsDriver
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.engines.python_engine import PythonEngineDriver
from sbproxy.engines.sglang import SGLANG
from sbproxy.engines.vllm import VLLM
from sbproxy.errors.engines import EngineBlocked

NAMES: tuple[EngineName, ...] = ("llama_cpp", "vllm", "sglang", "mistralrs")


class EngineDrivers(Mapping[str, EngineDriver]):
    """One driver a known name, and one more for each deployment that asks for an engine of its own."""

    def __init__(
        self,
        configs: Mapping[EngineName, EngineConfig],
        *,
        root: Path,
        ownership: OwnershipLedger,
        environ: Mapping[str, str],
        network: bool,
    ) -> None:
        self._configs = dict(configs)
        self._root = root
        self._ownership = ownership
        self._environ = environ
        self._network = network
        self._drivers = {name: self._make(name, self._configs.get(name)) for name in NAMES}
        self._own: dict[tuple[str, str], EngineDriver] = {}
        self._making = threading.Lock()

    def __getitem__(self, name: str) -> EngineDriver:
        return self._drivers[name]  # type: ignore[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._drivers)

    def __len__(self) -> int:
        return len(self._drivers)

    def for_deployment(self, engine: str, deployment: DeploymentConfig) -> EngineDriver:
        """The driver of ``engine`` for this deployment: the host's, or one for its ``engine_version``,
        ``engine_image`` and ``engine_sha256``. Raises EngineBlocked for an unknown engine or a contradiction."""
        name = next((each for each in NAMES if each == engine), None)
        if name is None:
            raise EngineBlocked(engine, f"this host runs {', '.join(NAMES)}")
        config = overridden(name, self._configs.get(name), deployment)
        if config is None:
            return self._drivers[name]
        with self._making:
            key = (name, config.model_dump_json())
            if key not in self._own:
                self._own[key] = self._make(name, config)
            return self._own[key]

    def _make(self, name: EngineName, config: EngineConfig | None) -> EngineDriver:
        engines_root, run_dir = self._root / "engines", self._root / "engines" / "run"
        if name in ("vllm", "sglang"):
            return PythonEngineDriver(
                VLLM if name == "vllm" else SGLANG,
                config,
                engines_root=engines_root,
                run_dir=run_dir,
                ownership=self._ownership,
                environ=self._environ,
                network=self._network,
            )
        single = LlamaCppDriver if name == "llama_cpp" else MistralRsDriver
        return single(
            config or EngineConfig(),
            engines_root=engines_root,
            run_dir=run_dir,
            ownership=self._ownership,
            environ=self._environ,
            network=self._network,
        )


def engine_drivers(
    configs: Mapping[EngineName, EngineConfig],
    *,
    root: Path,
    ownership: OwnershipLedger,
    environ: Mapping[str, str],
    network: bool = True,
) -> EngineDrivers:
    """One driver a known name, configured or with its defaults. ``root`` is the cache root: builds go to
    ``engines/`` in it, the folders of live processes (keys, logs) to ``engines/run/``."""
    return EngineDrivers(configs, root=root, ownership=ownership, environ=environ, network=network)
