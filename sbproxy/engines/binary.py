"""Asks an engine program what it is: digest, build number, options. Once a digest, remembered on disk.

The program of a llama.cpp build is a small stub over shared libraries, so the key of a memory is the program's
sha256 together with name, size and time of the libraries beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbproxy.engines.core.flags import Flags, parse_help
from sbproxy.engines.core.model import AcquisitionMethod, EngineBinary
from sbproxy.engines.facts import FactMemory
from sbproxy.errors.engines import EngineIncompatible

PROBE_TIMEOUT_S = 20.0
MAX_OUTPUT_BYTES = 1024 * 1024
UNKNOWN_VERSION = "unknown"

_MISSING_LIBRARY = re.compile(r"error while loading shared libraries: ([^\s:]{1,200}):|Library not loaded: (\S{1,200})")
_PACKAGES = {
    "libgomp.so.1": "libgomp1",
    "libvulkan.so.1": "libvulkan1",
    "libcurl.so.4": "libcurl4",
    "libstdc++.so.6": "libstdc++6",
    "libssl.so.3": "libssl3",
    "libcrypto.so.3": "libssl3",
}
"""Packages by the libraries that builds of llama.cpp load from the system."""

_BUILD = re.compile(r"version: (?:\S+ \(build )?(\d+)\b")


def _llama_version(output: str) -> str | None:
    match = _BUILD.search(output)
    # Builds from a packager's tree call themselves build 0 or 1.
    return f"b{match[1]}" if match and int(match[1]) > 1 else None


@dataclass(frozen=True, slots=True)
class Questions:
    """How one kind of program is asked for its options and its version, and how its answers are read."""

    program: str = "llama-server"
    help_words: tuple[str, ...] = ("--help",)
    read_help: Callable[[str], Flags] = parse_help
    read_version: Callable[[str], str | None] = _llama_version


class BinaryProbe:
    """Inspects programs for one engine; thread-safe. ``cache`` is a folder of ours."""

    def __init__(
        self, engine: str, cache: Path, environ: Mapping[str, str], questions: Questions = Questions()
    ) -> None:
        self._engine = engine
        self._memory = FactMemory(cache)
        self._environ = dict(environ)
        self._questions = questions
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}

    def inspect(self, program: Path, method: AcquisitionMethod, build: str | None = None) -> EngineBinary:
        """``build`` is the pinned build number, for programs that do not know their own.

        Raises EngineIncompatible when the program cannot be read, run or understood.
        """
        with self._lock:
            try:
                libraries = _libraries(program)
                stat = program.stat()
                state = f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{libraries}"
                known = self._seen.get((str(program), state))
                if known is None:
                    known = self._look_up(program, libraries)
                    self._seen[(str(program), state)] = known
            except OSError as failure:
                raise EngineIncompatible(self._engine, f"{program} cannot be used: {failure.strerror}") from failure
        sha256, facts = known
        return EngineBinary(
            engine=self._engine,
            program=program,
            sha256=sha256,
            version=build or facts["version"],
            method=method,
            flags=frozenset(facts["names"]),
            valued=frozenset(facts["valued"]),
        )

    def devices(self, program: Path) -> tuple[str, ...]:
        """The accelerators that this build sees on this machine now, by its own names (``CUDA0``, ``Vulkan0``)."""
        text = self._run(program, "--list-devices")
        return tuple(re.findall(r"^\s+([A-Za-z]+\d+):", text, re.MULTILINE))

    def _look_up(self, program: Path, libraries: str) -> tuple[str, dict[str, Any]]:
        sha256 = _sha256(program)
        key = hashlib.sha256(f"{sha256}\n{libraries}".encode()).hexdigest()
        return sha256, self._memory.recall(key, lambda: self._ask(program))

    def _ask(self, program: Path) -> dict[str, Any]:
        asked = self._questions
        flags = asked.read_help(self._run(program, *asked.help_words))
        if "--help" not in flags.names:
            words = " ".join(asked.help_words)
            raise EngineIncompatible(self._engine, f"{program} {words} lists no options; it is not {asked.program}")
        version = asked.read_version(self._run(program, "--version")) or UNKNOWN_VERSION
        return {"names": sorted(flags.names), "valued": sorted(flags.valued), "version": version}

    def _run(self, program: Path, *words: str) -> str:
        status, output = bounded_run([str(program), *words], self._environ)
        if status != 0:
            missing = _MISSING_LIBRARY.search(output)
            if missing is not None:
                raise EngineIncompatible(self._engine, _install_hint(program, missing[1] or missing[2]))
            last = output.strip().rpartition("\n")[2][:200]
            reason = f"exit status {status}" if status > 0 else f"signal {-status}"
            raise EngineIncompatible(self._engine, f"{program} {' '.join(words)} failed ({reason}): {last}")
        return output


def _install_hint(program: Path, library: str) -> str:
    package = _PACKAGES.get(library)
    how = f"the Debian and Ubuntu package {package} has it" if package else "install the package that has it"
    return f"{program} needs the shared library {library}, which this machine lacks; {how}"


def flags_of(binary: EngineBinary) -> Flags:
    return Flags(binary.flags, binary.valued)


def _libraries(program: Path) -> str:
    """Name, size and time of the shared libraries that the stub will load."""
    rows = []
    for entry in sorted(program.resolve().parent.iterdir()):
        if ".so" in entry.name or entry.suffix == ".dylib":
            stat = entry.stat()
            rows.append(f"{entry.name}:{stat.st_size}:{stat.st_mtime_ns}")
    return ",".join(rows)


def _sha256(program: Path) -> str:
    with program.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bounded_run(argv: list[str], environ: Mapping[str, str], timeout_s: float = PROBE_TIMEOUT_S) -> tuple[int, str]:
    """(exit status, output). Ended with SIGKILL when it is late or talks without end."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None  # noqa: S101 - asked for a pipe

        def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(timeout_s, end)
        timer.start()
        try:
            output = process.stdout.read(MAX_OUTPUT_BYTES)
            if len(output) == MAX_OUTPUT_BYTES:
                end()
            status = process.wait()
        finally:
            timer.cancel()
    return status, output.decode("utf-8", "replace")
