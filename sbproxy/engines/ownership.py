"""Durable records of the engine processes that a daemon started, so that the next one can end its orphans.

A record is written before the fork and completed by the shim before exec. Only a process whose pid *and* start
fingerprint match a record whose owner is gone is ever signalled. An owner lives while it holds the lock of its own
file: pids say nothing about a daemon in another container. Contracts section 20.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sbproxy.engines.core.container import container_name
from sbproxy.engines.runtime_tool import RuntimeTool
from sbproxy.engines.shim import ON_LINUX, start_fingerprint

TOKEN_VARIABLE = "SBPROXY_ENGINE_TOKEN"  # noqa: S105
DIRECTORY_VARIABLE = "SBPROXY_ENGINE_OWNERSHIP_DIR"
REAP_WAIT_S = 10.0
MAX_RECORD_BYTES = 16 * 1024

_TOKEN = re.compile(r"[0-9a-f]{32}")
_LOCK_SUFFIX = ".owner"
_LOCK = re.compile(rf"[0-9a-f]{{32}}{re.escape(_LOCK_SUFFIX)}")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A pid and what tells that process from a later one with the same pid."""

    pid: int
    start: str

    @property
    def alive(self) -> bool:
        return start_fingerprint(self.pid) == self.start


@dataclass(frozen=True, slots=True)
class Ticket:
    """One open record. ``token`` also stands in the engine's environment and names its run folder."""

    record: Path
    token: str


@dataclass(frozen=True, slots=True)
class ReapedEngine:
    """An orphan that was ended: whose it was, and whether it is gone (false: it did not die in time)."""

    pid: int
    engine: str
    deployment: str
    generation: int
    ended: bool


@dataclass(frozen=True, slots=True)
class _OwnerLock:
    path: Path
    release: Callable[[], object]
    """Closes the descriptor, and the lock goes with it; also called when the ledger is collected."""


def ownership_directory(environ: Mapping[str, str], engines_root: Path) -> Path:
    """Where records live: ``SBPROXY_ENGINE_OWNERSHIP_DIR``, else beside the engines."""
    configured = environ.get(DIRECTORY_VARIABLE)
    return Path(configured) if configured else engines_root / "ownership"


class OwnershipLedger:
    """The records of one folder; several daemons may share it, each touches only what has no living owner.

    Blocking. ``open`` raises OSError when the folder cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._changing = threading.Lock()
        self._open: set[str] = set()
        self._held: _OwnerLock | None = None

    def open(
        self,
        *,
        engine: str,
        deployment: str,
        generation: int,
        program_sha256: str,
        run_root: Path,
        replica: int = 0,
        container_program: Path | None = None,
    ) -> Ticket:
        """Write who is about to start what, before it exists. ``container_program`` is the runtime's command."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ticket_token = secrets.token_hex(16)
        owner_lock = self._hold(ticket_token)
        record = self._directory / f"{ticket_token}.json"
        pid = os.getpid()
        content = {
            "version": 1,
            "token": ticket_token,
            "engine": engine,
            "deployment": deployment,
            "generation": generation,
            "program_sha256": program_sha256,
            "run_root": str(run_root),
            "owner": asdict(ProcessIdentity(pid, start_fingerprint(pid) or "")) | {"lock": owner_lock.name},
            "child": None,
            "container": None,
        }
        if container_program is not None:
            name = container_name(deployment, generation, replica, ticket_token)
            content["container"] = {"program": str(container_program), "name": name}
        ticket = Ticket(record, ticket_token)
        partial = record.with_suffix(".tmp")
        try:
            with partial.open("w", encoding="utf-8") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(record)
        except OSError:
            self.close(ticket)
            raise
        return ticket

    def close(self, ticket: Ticket) -> None:
        """Forget a process that has ended."""
        ticket.record.unlink(missing_ok=True)
        with self._changing:
            self._open.discard(ticket.token)
            if not self._open and self._held is not None:
                self._held.path.unlink(missing_ok=True)
                self._held.release()
                self._held = None

    def reap_orphans(self) -> list[ReapedEngine]:
        """End every engine whose daemon is gone, wait for its end, and delete its record and run folder."""
        reaped: list[ReapedEngine] = []
        for path in sorted(self._directory.glob("*.json")):
            record = _read(path)
            if record is None:
                log.warning("engine ownership record %s is unreadable; it is ignored", path.name)
                continue
            owner = ProcessIdentity(int(record["owner"]["pid"]), str(record["owner"]["start"]))
            if owner.alive or self._is_held(record["owner"].get("lock")):
                continue
            survivors = _end(record) + _end_container(record)
            reaped += [_reaped(record, pid, ended) for pid, ended in survivors]
            if all(ended for _, ended in survivors):
                _remove_run_folder(record)
                path.unlink(missing_ok=True)
        for lock in self._directory.glob(f"*{_LOCK_SUFFIX}"):
            if not self._is_held(lock.name):
                lock.unlink(missing_ok=True)
        return reaped

    def _hold(self, token: str) -> Path:
        """The lock of this owner, held from its first engine to the end of its last. No engine inherits it."""
        with self._changing:
            while self._held is None:
                path = self._directory / f"{secrets.token_hex(16)}{_LOCK_SUFFIX}"
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                release = weakref.finalize(self, os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Whoever cleaned up at this moment took it for an old one; then there is no such file any more.
                if path.exists():
                    self._held = _OwnerLock(path, release)
                else:
                    release()
            self._open.add(token)
            return self._held.path

    def _is_held(self, name: object) -> bool:
        """Whether some living process holds that owner's lock."""
        if not isinstance(name, str) or not _LOCK.fullmatch(name):
            return False
        try:
            descriptor = os.open(self._directory / name, os.O_RDWR)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(MAX_RECORD_BYTES))
        int(record["owner"]["pid"]), record["owner"]["start"], int(record["generation"])
        if not _TOKEN.fullmatch(record["token"]):
            return None
        if record["child"] is not None:
            int(record["child"]["pid"]), record["child"]["start"], int(record["child"]["pgid"])
        if record.get("container") is not None:
            str(record["container"]["program"]), str(record["container"]["name"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _end(record: Mapping[str, Any]) -> list[tuple[int, bool]]:
    """(pid, whether it is gone) of every process of this record that still ran."""
    child = record["child"]
    targets: list[ProcessIdentity] = []
    if child is not None:
        leader = ProcessIdentity(int(child["pid"]), str(child["start"]))
        if leader.alive:
            targets.append(leader)
    # Also what the engine itself started, and a shim that had no time to complete the record.
    group = None if child is None else int(child["pgid"])
    targets += [each for each in _marked(str(record["token"]), group) if each not in targets]
    for target in targets:
        _kill(target)
    deadline = time.monotonic() + REAP_WAIT_S
    while any(target.alive for target in targets) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [(target.pid, not target.alive) for target in targets]


def _end_container(record: Mapping[str, Any]) -> list[tuple[int, bool]]:
    """The runtime's command died with its daemon, the container did not; it is ours only with our token on it."""
    container = record.get("container")
    if container is None:
        return []
    tool = RuntimeTool.at(Path(container["program"]), os.environ)
    if tool is None:
        log.warning("the container %s has no %s to end it with", container["name"], container["program"])
        return [(0, False)]
    found = tool.owned(container["name"], str(record["token"]))
    gone = tool.remove(container["name"], str(record["token"]))
    return [(0, gone)] if found or not gone else []


def _marked(token: str, group: int | None) -> Iterator[ProcessIdentity]:
    """Live processes that carry the token; only Linux shows it, and only of our own user."""
    if not ON_LINUX:
        return
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if not _carries(folder, token, group):
                continue
        except OSError:
            continue
        start = start_fingerprint(int(folder.name))
        if start is not None:
            yield ProcessIdentity(int(folder.name), start)


def _carries(process: Path, token: str, group: int | None) -> bool:
    """The token in its environment, or, because vLLM's processes overwrite theirs with a title, in the name of the
    folder where it runs; then it must also be of the engine's group, for people may look into that folder."""
    if f"{TOKEN_VARIABLE}={token}".encode() in (process / "environ").read_bytes().split(b"\0"):
        return True
    if group is None or os.getpgid(int(process.name)) != group:
        return False
    return (process / "cwd").readlink().name.removesuffix(" (deleted)").endswith(f"-{token}")


def _kill(target: ProcessIdentity) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not hasattr(os, "pidfd_open"):
            if target.alive:
                os.kill(target.pid, signal.SIGKILL)
            return
        # The descriptor pins the process, so that the pid cannot pass to another one between check and kill.
        descriptor = os.pidfd_open(target.pid)
        try:
            if target.alive:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _reaped(record: Mapping[str, Any], pid: int, ended: bool) -> ReapedEngine:
    return ReapedEngine(pid, str(record["engine"]), str(record["deployment"]), int(record["generation"]), ended)


def _remove_run_folder(record: Mapping[str, Any]) -> None:
    """The folder with the dead engine's key: it carries the token in its name."""
    token = str(record["token"])
    for folder in Path(str(record["run_root"])).glob(f"*-{token}"):
        shutil.rmtree(folder, ignore_errors=True)
