"""The mistral.rs driver: where ``mistralrs`` comes from, whether it fits, and how it is started.

Tried in this order: the configured ``path``, ``PATH``, the release archive whose version and sha256 the configuration
gives. One program, so there is no container and no uv. Document 1, "mistral.rs".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.config.core.model_host import EngineConfig
from sbproxy.devices.core.model import Machine
from sbproxy.devices.inventory import MachineInventory
from sbproxy.engines.acquisition import PublishedBuilds, fetch_archive
from sbproxy.engines.binary import BinaryProbe, Questions, flags_of
from sbproxy.engines.core.mistralrs_argv import (
    ENGINE,
    KV_RUNS,
    REQUIRED,
    SERVE,
    parse_serve_help,
    release_of,
    serve_arguments,
)
from sbproxy.engines.core.mistralrs_release import PROGRAM, RELEASES, archive_name, incomplete_pin, is_release
from sbproxy.engines.core.model import AcquisitionMethod, Availability, EngineBinary, LaunchSpec
from sbproxy.engines.core.pins import HostPlatform
from sbproxy.engines.core.settings import substituted
from sbproxy.engines.driver import AcquireProgress
from sbproxy.engines.environment import engine_environment
from sbproxy.engines.llama_cpp import this_host
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.engines.process import Arguments, Launch, LoopbackEngine
from sbproxy.engines.ways import ProgramWays, Way, take, weigh
from sbproxy.errors.engines import EngineBlocked, EngineIncompatible

log = logging.getLogger(__name__)
_QUESTIONS = Questions(
    program=PROGRAM, help_words=(SERVE, "--help"), read_help=parse_serve_help, read_version=release_of
)


class MistralRsDriver:
    """An :class:`EngineDriver`. ``engines_root`` keeps builds and facts about them, ``run_dir`` one folder a process.

    ``network`` false (``--offline``) fetches nothing. ``releases``, ``host`` and ``machine`` (blocking) are for other
    mirrors and machines.
    """

    name = ENGINE

    def __init__(
        self,
        config: EngineConfig,
        *,
        engines_root: Path,
        run_dir: Path,
        ownership: OwnershipLedger,
        environ: Mapping[str, str],
        network: bool = True,
        releases: str = RELEASES,
        host: HostPlatform | None = None,
        machine: Callable[[], Machine] | None = None,
    ) -> None:
        self._config = config
        self._run_dir = run_dir.absolute()
        self._ownership = ownership
        self._environ = dict(environ)
        self._network = network
        self._releases = releases.rstrip("/")
        self._host = host or this_host()
        self._machine = machine or MachineInventory().probe
        root = engines_root.absolute() / ENGINE
        self._builds = PublishedBuilds(ENGINE, root, PROGRAM, beside=("lib",))
        self._probe = BinaryProbe(ENGINE, root / "probes", engine_environment(self._environ), _QUESTIONS)
        self._search = ProgramWays(ENGINE, PROGRAM, config, self._environ, self._inspect)

    def availability(self) -> Availability:
        """Never raises; the reason is one bounded line."""
        if self._config.launch != "binary":
            return Availability(ENGINE, "blocked", self._no_launch())
        return weigh(ENGINE, self._ways())

    def acquire(self, progress: AcquireProgress) -> EngineBinary:
        """The first usable way's binary, fetched when need be."""
        if self._config.launch != "binary":
            raise EngineBlocked(ENGINE, self._no_launch())
        return take(ENGINE, self._ways(), self._builds, self._inspect, progress)

    def check(self, artifact: ResolvedArtifact, spec: LaunchSpec, binary: EngineBinary) -> None:
        """Refuse what this engine cannot run, before anything is stopped or started for it."""
        if artifact.variant.format != "safetensors":
            raise EngineIncompatible(
                ENGINE, f"it runs safetensors files, {artifact.subject} is {artifact.variant.format}; use llama_cpp"
            )
        asked = self._config.acceleration
        if asked not in ("auto", spec.device):
            raise EngineIncompatible(ENGINE, f"engines.mistralrs.acceleration is {asked}, the plan uses {spec.device}")
        serve_arguments(flags_of(binary), spec, port=1, model="model")

    async def launch(self, binary: EngineBinary, spec: LaunchSpec) -> LoopbackEngine:
        """See :class:`EngineDriver`. The server has no key of its own: it is on loopback, and asks callers for none."""
        serve_arguments(flags_of(binary), spec, port=1, model="model")
        runs = substituted(spec, KV_RUNS)
        if runs is not None:
            log.warning(
                "kv_quant_substituted deployment=%s engine=%s requested=%s runs=%s",
                *(spec.deployment, ENGINE, spec.kv_quant, runs),
            )
        environ = engine_environment(self._environ, spec.device_indexes if spec.device == "cuda" else None)
        launch = Launch(binary, spec, _arguments(binary, spec), environ, self._run_dir)
        return await LoopbackEngine.start(launch, self._ownership)

    def _no_launch(self) -> str:
        return f"launch {self._config.launch} does not exist for it; use binary"

    def _ways(self) -> list[Way]:
        if self._config.path is not None:
            return [self._search.configured(Path(self._config.path).absolute())]
        return [self._search.search_path(), self._archive_way()]

    def _archive_way(self) -> Way:
        version, sha256 = self._config.version, self._config.sha256
        try:
            name = archive_name(self._host, self._config.acceleration, self._machine())
        except EngineIncompatible as failure:
            return Way("archive", failure.reason, refusal="incompatible")
        if version is None or sha256 is None:
            return Way("archive", incomplete_pin(version))
        if not is_release(version):
            return Way("archive", f"{version} is no release of mistral.rs; write it as v0.9.0 is written")
        published = self._search.published(self._builds, "archive", sha256, version)
        if published is not None:
            return published
        if not self._network:
            return Way("archive", f"the release archive of {version} is not here and --offline forbids fetching it")
        fetch = fetch_archive(ENGINE, (f"{self._releases}/{version}/{name}",))
        return Way("archive", f"release archive {name} of {version}", fetch=fetch, sha256=sha256, build=version)

    def _inspect(self, program: Path, method: AcquisitionMethod, build: str | None) -> EngineBinary:
        binary = self._probe.inspect(program, method, build)
        missing = sorted(set(REQUIRED) - binary.flags)
        if missing:
            raise EngineIncompatible(ENGINE, f"{program} {SERVE} does not know {', '.join(missing)}; it is too old")
        return binary


def _arguments(binary: EngineBinary, spec: LaunchSpec) -> Arguments:
    """The server lists a model under the path it was given and takes no other name, so the random alias that tells
    our engine from a stranger becomes a link in the process's own folder, where it starts."""
    flags = flags_of(binary)

    def say(port: int, alias: str, key_file: Path) -> tuple[str, ...]:
        (key_file.parent / alias).symlink_to(spec.model_path.absolute())
        return serve_arguments(flags, spec, port=port, model=alias)

    return say
