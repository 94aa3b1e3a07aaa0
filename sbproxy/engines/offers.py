"""Where a Python engine can come from on this machine, weighed: an image, an installed program, a uv environment.

Explicit provisioning is final. Without any, a container comes first and the rest only where none can run. Weighing
reads no network; what an offer takes to become a binary is done when it is taken. Document 1, "Managed engines".
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sbproxy.config.core.model_host import EngineConfig
from sbproxy.engines.binary import UNKNOWN_VERSION
from sbproxy.engines.container import Daemon, ImageShelf, daemon_of
from sbproxy.engines.core.container import Image, pinned_image
from sbproxy.engines.core.flags import Flags
from sbproxy.engines.core.model import AcquisitionMethod, AvailabilityState, EngineBinary
from sbproxy.engines.core.python_pins import VERSIONS, is_exact, missing_text, requirement
from sbproxy.engines.dialect import Dialect
from sbproxy.engines.driver import AcquireProgress
from sbproxy.engines.facts import FactMemory
from sbproxy.engines.python_program import PythonProgram, options_of
from sbproxy.engines.runtime_tool import RuntimeTool
from sbproxy.engines.toolchain import missing_tools
from sbproxy.engines.uv import Environment, UvEnvironments, uv_command
from sbproxy.errors.engines import EngineBlocked, EngineIncompatible

DAEMON_MEMORY_S = 15.0
"""How long an answer of the container runtime holds; a status page asks for the availability again and again."""

_PROVISIONING = frozenset({"launch", "image", "path", "version", "sha256"})
Take = Callable[[AcquireProgress], EngineBinary]


@dataclass(frozen=True, slots=True)
class Offer:
    """One option: usable with ``take`` (at once or after fetching, says ``state``), else refused with ``detail``."""

    method: AcquisitionMethod
    state: AvailabilityState
    detail: str
    version: str | None = None
    program: Path | None = None
    take: Take | None = None


@dataclass(slots=True)
class Offers:
    """The offers for one engine as configured. ``folder`` keeps its environments and what builds said. Blocking."""

    dialect: Dialect
    config: EngineConfig | None
    folder: Path
    environ: Mapping[str, str]
    engine_environ: Mapping[str, str]
    network: bool
    headers: Path | None = None
    _daemons: dict[Path, tuple[float, Daemon]] = field(default_factory=dict)
    _programs: PythonProgram = field(init=False)
    _memory: FactMemory = field(init=False)

    def __post_init__(self) -> None:
        self._memory = FactMemory(self.folder / "probes")
        self._programs = PythonProgram(self.dialect, self._memory, self.engine_environ)

    def weigh(self) -> list[Offer]:
        """In the order in which they are tried; never empty, never raises."""
        config = self.config or EngineConfig()
        said = config.model_fields_set & _PROVISIONING if self.config is not None else frozenset()
        if not said:
            container = self._container(None, None)
            found = [self._installed("search_path", None), self._environment(None)]
            return [container] if self._tool()[0] is not None else [container, *found]
        if "launch" in said and config.launch == "container":
            return [self._container(config.image, config.sha256)]
        if "launch" in said and config.launch == "uv":
            return [self._environment(config.version)]
        if config.path is not None:
            return [self._installed("path", Path(config.path))]
        installed = self._installed("search_path", None)
        return [installed] if "launch" in said else [installed, self._environment(config.version)]

    def _tool(self) -> tuple[RuntimeTool | None, str]:
        """The first tool whose daemon serves us, or why none does."""
        refusals = []
        path = self.environ.get("PATH", os.defpath)
        for tool in RuntimeTool.all(self.environ):
            daemon = self._daemon(tool)
            if not daemon.refusal:
                return tool, ""
            refusals.append(daemon.refusal)
        return None, "; ".join(refusals) or f"there is neither docker nor podman on PATH ({path})"[:200]

    def _daemon(self, tool: RuntimeTool) -> Daemon:
        known = self._daemons.get(tool.program)
        if known is None or time.monotonic() - known[0] > DAEMON_MEMORY_S:
            known = self._daemons[tool.program] = (time.monotonic(), daemon_of(tool))
        return known[1]

    def _container(self, text: str | None, sha256: str | None) -> Offer:
        engine = self.dialect.engine
        tool, refusal = self._tool()
        if tool is None:
            return Offer("container", "blocked", refusal)
        try:
            image = pinned_image(engine, text)
        except EngineBlocked as failure:
            return Offer("container", "blocked", failure.reason)
        if sha256 not in (None, image.digest):
            return Offer("container", "blocked", f"the configured sha256 is not the digest of image {image.reference}")
        shelf = ImageShelf(engine, tool)
        version = (self.config.version if self.config else None) or f"sha256:{image.digest[:12]}"

        def take(progress: AcquireProgress) -> EngineBinary:
            if not shelf.has(image):
                shelf.pull(image, progress)
            flags = options_of(
                self.dialect, self._memory, image.digest, lambda words: shelf.ask(image, self.dialect.entrypoint, words)
            )
            return self._binary("container", tool.program, version, image.digest, flags, image)

        if shelf.has(image):
            return Offer("container", "available", f"image {image.reference}", version, tool.program, take)
        if not self.network:
            detail = f"image {image.reference} is not here and --offline forbids fetching it"
            return Offer("container", "blocked", detail)
        return Offer("container", "acquirable", f"image {image.reference} ({tool.kind} pull)", version, None, take)

    def _installed(self, method: AcquisitionMethod, configured: Path | None) -> Offer:
        engine, name = self.dialect.engine, self.dialect.program
        program = configured
        if program is None:
            found = shutil.which(name, path=self.environ.get("PATH", os.defpath))
            if name == "python" or found is None:
                hint = f"set engines.{engine}.path to " + ("the Python that has it" if name == "python" else "one")
                what = "it is no program on PATH" if name == "python" else f"there is no {name} on PATH"
                return Offer(method, "blocked", f"{what}; {hint}")
            program = Path(found).absolute()
        if not program.is_file() or not os.access(program, os.X_OK):
            return Offer(method, "blocked", f"engines.{engine}.path {program} is no executable file")
        try:
            version = self._programs.version(program)
        except EngineIncompatible as failure:
            return Offer(method, "incompatible", failure.reason)
        refusal = self._mismatch(program, version)
        if refusal is not None:
            return Offer(method, "blocked", f"{program}: {refusal}")

        def take(progress: AcquireProgress) -> EngineBinary:
            identity = self._programs.identity(program)
            flags = self._programs.flags(program, version, identity)
            return self._binary(method, program, version, identity, flags)

        where = "configured path" if method == "path" else "on PATH:"
        return Offer(method, "available", f"{where} {program} ({version})", version, program, take)

    def _mismatch(self, program: Path, version: str) -> str | None:
        wanted = self.config.version if self.config else None
        if self.config is not None and self.config.sha256 is not None:
            # Its file is a few lines that name a Python: a digest of it would prove nothing.
            return f"sha256 pins no installed {self.dialect.engine}; remove it"
        if wanted is None or version.partition("+")[0] == wanted or version == UNKNOWN_VERSION:
            return None
        return f"it is {version}, the configuration wants {wanted}"

    def _environment(self, version: str | None) -> Offer:
        engine = self.dialect.engine
        acceleration = self.config.acceleration if self.config else "auto"
        wanted = version or VERSIONS[engine]
        if not is_exact(wanted):
            return Offer(
                "uv", "blocked", f"version {wanted!r} is no exact release; write one such as {VERSIONS[engine]}"
            )
        asked = requirement(engine, wanted, acceleration)
        environments = UvEnvironments(engine, self.folder / "uv", self.environ)
        there = environments.find(asked)
        missing = missing_tools(self.environ, self.headers) if acceleration != "cpu" else ()
        if missing:
            return Offer("uv", "incompatible", missing_text(missing))

        def take(progress: AcquireProgress) -> EngineBinary:
            made = environments.find(asked) or environments.install(asked, progress)
            return self._from_environment(made)

        if there is not None:
            program = there.folder / "bin" / self.dialect.program
            return Offer("uv", "available", f"uv environment of {asked}", wanted, program, take)
        if not self.network:
            return Offer("uv", "blocked", f"there is no environment of {asked} and --offline forbids making it")
        if uv_command(self.environ) is None:
            return Offer("uv", "blocked", "uv is not on this machine; install it (pip install uv)")
        return Offer("uv", "acquirable", f"uv environment of {asked}", wanted, None, take)

    def _from_environment(self, made: Environment) -> EngineBinary:
        program = made.folder / "bin" / self.dialect.program
        flags = self._programs.flags(program, made.version, made.sha256)
        return self._binary("uv", program, made.version, made.sha256, flags)

    def _binary(
        self,
        method: AcquisitionMethod,
        program: Path,
        version: str,
        sha256: str,
        flags: Flags,
        image: Image | None = None,
    ) -> EngineBinary:
        return EngineBinary(
            engine=self.dialect.engine,
            program=program,
            sha256=sha256,
            version=version,
            method=method,
            flags=flags.names,
            valued=flags.valued,
            image=image.reference if image else None,
        )
