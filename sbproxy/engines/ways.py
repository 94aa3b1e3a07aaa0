"""The ways to one engine's program, weighed: configured path, PATH, a build that was fetched or can be.

Finds and compares; which ways an engine has, and in which order, is its driver's decision. Of a failed search the
most telling refusal is the reason. Document 1, "Managed engines".
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sbproxy.config.core.model_host import EngineConfig
from sbproxy.engines.acquisition import Fetch, PublishedBuilds
from sbproxy.engines.binary import UNKNOWN_VERSION
from sbproxy.engines.core.model import (
    AcquisitionMethod,
    AcquisitionOption,
    Availability,
    AvailabilityState,
    EngineBinary,
)
from sbproxy.engines.driver import AcquireProgress
from sbproxy.errors.engines import EngineBlocked, EngineIncompatible

MAX_DETAIL, MAX_REASON = 300, 500

Inspect = Callable[[Path, AcquisitionMethod, str | None], EngineBinary]
"""Looks at a program (the build number when it is pinned); EngineIncompatible when it cannot be used."""


@dataclass(frozen=True, slots=True)
class Way:
    """One acquisition option, weighed: a ready binary, something to fetch, or a refusal of some kind."""

    method: AcquisitionMethod
    detail: str
    binary: EngineBinary | None = None
    fetch: Fetch | None = None
    sha256: str = ""
    build: str = ""
    folder: str | None = None
    """Where in the archive the program is, when not wherever it is found."""
    refusal: AvailabilityState = "blocked"
    final: bool = False
    """A refusal that ends the search: the operator named exactly this one."""

    @property
    def usable(self) -> bool:
        return self.binary is not None or self.fetch is not None


@dataclass(frozen=True, slots=True)
class ProgramWays:
    """What can be said of any engine that is one program. ``program`` is its file name."""

    engine: str
    program: str
    config: EngineConfig
    environ: Mapping[str, str]
    inspect: Inspect

    def configured(self, program: Path) -> Way:
        """The operator's own path: nothing else is used in its place."""
        if not program.is_file() or not os.access(program, os.X_OK):
            return Way("path", f"engines.{self.engine}.path {program} is no executable file", final=True)
        try:
            binary = self.inspect(program, "path", None)
        except EngineIncompatible as failure:
            return Way("path", failure.reason, refusal="incompatible", final=True)
        mismatch = self._mismatch(binary, proven=False)
        if mismatch is not None:
            return Way("path", f"{program}: {mismatch}", final=True)
        return Way("path", f"configured path {program}", binary=binary)

    def search_path(self) -> Way:
        """The first program of that name on PATH."""
        found = shutil.which(self.program, path=self.environ.get("PATH", os.defpath))
        if found is None:
            return Way("search_path", f"there is no {self.program} on PATH")
        try:
            binary = self.inspect(Path(found).absolute(), "search_path", None)
        except EngineIncompatible as failure:
            return Way("search_path", failure.reason, refusal="incompatible")
        mismatch = self._mismatch(binary, proven=True)
        if mismatch is not None:
            return Way("search_path", f"{found}: {mismatch}")
        return Way("search_path", f"{found} on PATH", binary=binary)

    def published(self, builds: PublishedBuilds, method: AcquisitionMethod, sha256: str, build: str) -> Way | None:
        """A build that an earlier acquisition left here; None when there is none."""
        program = builds.find(sha256)
        if program is None:
            return None
        try:
            binary = self.inspect(program, method, build)
        except EngineIncompatible as failure:
            return Way(method, failure.reason, refusal="incompatible")
        return Way(method, f"{build} from {method} {sha256[:12]}…", binary=binary)

    def _mismatch(self, binary: EngineBinary, *, proven: bool) -> str | None:
        """Why a found binary is not the configured one. A sha256 decides alone; a version needs to be ``proven``
        (an operator's own path is believed when the binary does not know its version)."""
        wanted, sha256 = self.config.version, self.config.sha256
        if sha256 is not None:
            return None if binary.sha256 == sha256 else f"its sha256 {binary.sha256[:12]}… is not the configured one"
        if wanted is None or binary.version == wanted:
            return None
        if binary.version == UNKNOWN_VERSION:
            return f"it does not say its version, the configuration wants {wanted}" if proven else None
        return f"it is {binary.version}, the configuration wants {wanted}"


def weigh(engine: str, ways: list[Way]) -> Availability:
    """One of document 1's four states, from ways in the order in which they are tried."""
    options = tuple(AcquisitionOption(way.method, way.usable, way.detail[:MAX_DETAIL]) for way in ways)
    chosen = _choose(ways)
    if chosen.binary is not None:
        binary = chosen.binary
        return Availability(engine, "available", chosen.detail[:MAX_DETAIL], binary.program, binary.version, options)
    if chosen.fetch is not None:
        return Availability(engine, "acquirable", chosen.detail[:MAX_DETAIL], None, chosen.build, options)
    return Availability(engine, chosen.refusal, _reason(chosen, ways), options=options)


def take(
    engine: str, ways: list[Way], builds: PublishedBuilds, inspect: Inspect, progress: AcquireProgress
) -> EngineBinary:
    """The first usable way's binary, fetched when need be. Raises EngineBlocked, EngineIncompatible or
    EngineAcquisitionFailed."""
    chosen = _choose(ways)
    if chosen.binary is not None:
        return chosen.binary
    if chosen.fetch is None:
        refused = EngineIncompatible if chosen.refusal == "incompatible" else EngineBlocked
        raise refused(engine, _reason(chosen, ways))
    program = builds.install(chosen.method, chosen.sha256, chosen.fetch, progress, chosen.folder)
    return inspect(program, chosen.method, chosen.build)


def _choose(ways: list[Way]) -> Way:
    final = next((way for way in ways if way.final or way.usable), None)
    if final is not None:
        return final
    return next((way for way in ways if way.refusal == "incompatible"), ways[-1])


def _reason(chosen: Way, ways: list[Way]) -> str:
    if chosen.final or chosen.refusal == "incompatible":
        return chosen.detail[:MAX_DETAIL]
    return "; ".join(way.detail for way in ways)[:MAX_REASON]
