"""Asks an installed Python engine for its version and its options: a program (vLLM) or a Python with a module (SGLang).

The version is asked of the Python's own records, in a tenth of a second; the options of the engine itself, which takes
ten, so that only an acquisition asks for them, and remembers.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sbproxy.engines.binary import UNKNOWN_VERSION, bounded_run
from sbproxy.engines.core.flags import Flags, parse_argparse_help
from sbproxy.engines.dialect import Dialect
from sbproxy.engines.facts import FactMemory
from sbproxy.errors.engines import EngineIncompatible

HELP_TIMEOUT_S = 180.0
_VERSION_QUESTION = (
    "import importlib.metadata as m, sys\n"
    "for name in sys.argv[1:]:\n"
    "    try: print('version', m.version(name)); break\n"
    "    except m.PackageNotFoundError: pass\n"
)
_ANSWER = re.compile(r"^version ([0-9A-Za-z.+!_-]{1,64})$", re.MULTILINE)
_SHEBANG = re.compile(rb"#!\s*(/[^\s]+python[0-9.]*)\s*$", re.MULTILINE)


@dataclass(slots=True)
class PythonProgram:
    """Questions to programs of one engine, answered once each. Blocking; ``environ`` is the engine's own."""

    dialect: Dialect
    memory: FactMemory
    environ: Mapping[str, str]
    _versions: dict[tuple[str, int], str] = field(default_factory=dict)

    def version(self, program: Path) -> str:
        """The installed version, or "unknown". Raises EngineIncompatible when the program or the engine is missing."""
        engine = self.dialect.engine
        try:
            stamp = program.stat().st_mtime_ns
            interpreter = program if self.dialect.program == "python" else _interpreter(program)
        except OSError as failure:
            raise EngineIncompatible(engine, f"{program} cannot be used: {failure.strerror}") from failure
        if interpreter is None:
            return UNKNOWN_VERSION
        known = self._versions.get((str(program), stamp))
        if known is None or self.dialect.program == "python":
            words = [str(interpreter), "-c", _VERSION_QUESTION, *self.dialect.distributions]
            try:
                status, output = bounded_run(words, self.environ)
            except OSError as failure:
                raise EngineIncompatible(engine, f"{interpreter} cannot be run: {failure.strerror}") from failure
            answer = _ANSWER.search(output)
            if status != 0 or answer is None:
                raise EngineIncompatible(engine, f"the Python {interpreter} has no {engine}")
            known = self._versions[(str(program), stamp)] = answer[1]
        return known

    def flags(self, program: Path, version: str, identity: str) -> Flags:
        """The options of this installation. ``identity`` tells it from another one of the same version."""

        def ask(words: tuple[str, ...]) -> str:
            try:
                status, output = bounded_run([str(program), *words], self.environ, HELP_TIMEOUT_S)
            except OSError as failure:
                raise EngineIncompatible(self.dialect.engine, f"{program}: {failure.strerror}") from failure
            if status != 0:
                last = output.strip().rpartition("\n")[2][:200]
                reason = f"{program} {' '.join(words)} failed (exit status {status}): {last}"
                raise EngineIncompatible(self.dialect.engine, reason)
            return output

        return options_of(self.dialect, self.memory, f"{identity}\n{version}", ask)

    def identity(self, program: Path) -> str:
        """sha256 of the program's file, with its time: an upgrade writes it anew."""
        try:
            with program.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            return hashlib.sha256(f"{content}\n{program}\n{program.stat().st_mtime_ns}".encode()).hexdigest()
        except OSError as failure:
            raise EngineIncompatible(self.dialect.engine, f"{program} cannot be read: {failure.strerror}") from failure


def options_of(dialect: Dialect, memory: FactMemory, identity: str, ask: Callable[[tuple[str, ...]], str]) -> Flags:
    """What a build knows, by the first of its ways to print help that works. Raises EngineIncompatible."""

    def facts() -> dict[str, object]:
        refused: EngineIncompatible | None = None
        for words in dialect.help_words:
            try:
                found = parse_argparse_help(ask(words))
            except EngineIncompatible as failure:
                refused = failure
                continue
            if set(dialect.required) <= found.names:
                return {"names": sorted(found.names), "valued": sorted(found.valued), "version": ""}
        lacks = f"its help names none of {', '.join(dialect.required[:3])} and so on"
        raise refused or EngineIncompatible(dialect.engine, f"{lacks}; it is no server of {dialect.engine}")

    key = hashlib.sha256(f"{dialect.engine}\n{identity}".encode()).hexdigest()
    known = memory.recall(key, facts)
    return Flags(frozenset(known["names"]), frozenset(known["valued"]))


def _interpreter(program: Path) -> Path | None:
    """The Python that a script names in its first line."""
    with program.open("rb") as file:
        match = _SHEBANG.match(file.read(512))
    return Path(os.fsdecode(match[1])) if match else None
