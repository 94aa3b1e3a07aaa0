"""Downloads one pinned wheel, for models and for engines, with pip: its mirrors, proxies and credentials just work.

It runs in a process group of its own and in a folder of its own, so that one left behind by a killed
daemon can't touch what a later download works on. What its failure means is decided by ``core.wheel``.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from sbproxy.artifacts.core.wheel import pip_command, pip_environment, pip_failure, requirement
from sbproxy.artifacts.disk import files_below, size_of
from sbproxy.catalog.core.model import WheelPin
from sbproxy.errors.artifacts import PackageToolMissing, UnexpectedResponse

_OUTPUT_TAIL = 8 * 1024
# The index pages come first; what follows is a line for each file that does not fit.
_LOG_HEAD = 1024 * 1024
_POLL_S = 0.1
_OUT_OF_SPACE = {"No space left on device": errno.ENOSPC, "Disk quota exceeded": errno.EDQUOT}


def download_wheel(
    pin: WheelPin,
    place: Path,
    *,
    executable: str,
    environ: Mapping[str, str],
    check: Callable[[], None],
    grown: Callable[[int], None],
) -> Path:
    """Let pip fetch and check the wheel, below the empty folder ``place``; returns its path.

    ``executable`` is the Python that has pip. About ten times a second ``check`` is called, which may raise to end
    the download; ``grown`` gets the bytes of the wheel that are here, when they are more than before. Raises
    PackageToolMissing, SourceNotFound, DigestMismatch, TransportFailed, UnexpectedResponse; an OSError when the
    disk of ``place`` refuses.
    """
    requirements, scratch, wheels = place / "requirements.txt", place / "scratch", place / "wheels"
    requirements.write_text(requirement(pin), encoding="utf-8")
    scratch.mkdir()
    output, log = place / "output.txt", place / "log.txt"
    with output.open("wb") as sink:
        try:
            process = subprocess.Popen(
                pip_command(executable, str(requirements), str(wheels), str(log)),
                cwd=place,
                env=pip_environment(environ, str(scratch)),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise PackageToolMissing(executable) from None
    status = _await(process, place, check, grown)
    if status:
        said = _end_of(output)
        for words, number in _OUT_OF_SPACE.items():
            if words in said:
                raise OSError(number, os.strerror(number), str(place))
        raise pip_failure(executable, pin, status, said, _beginning_of(log))
    found = list(wheels.glob("*.whl"))
    if len(found) != 1:
        raise UnexpectedResponse(f"pypi:{pin.distribution}", f"pip left {len(found)} wheels, one was asked")
    return found[0]


def _await(
    process: subprocess.Popen[bytes], place: Path, check: Callable[[], None], grown: Callable[[int], None]
) -> int:
    """Wait for pip; whatever ends the wait ends its whole group."""
    told = 0
    try:
        while True:
            try:
                return process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                check()
                # Of the wheel alone: while pip asks an index that does not answer, nothing comes and nothing is told.
                here = sum(size_of(path) or 0 for path in files_below(place) if path.suffix == ".whl")
                if here > told:
                    told = here
                    grown(here)
    finally:
        if process.poll() is None:
            _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill pip and its children. Nothing is lost: its folder goes too. Not reaped yet, so the group is still ours."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_of(path: Path) -> str:
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _OUTPUT_TAIL))
        return stream.read(_OUTPUT_TAIL).decode("utf-8", "replace")


def _beginning_of(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(_LOG_HEAD).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
