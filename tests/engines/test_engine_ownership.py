"""A killed daemon's engine ends: by the kernel at once, else by the next daemon, which harms nobody else's process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbproxy.engines.ownership import (
    TOKEN_VARIABLE,
    OwnershipLedger,
    ProcessIdentity,
    Ticket,
    ownership_directory,
)
from sbproxy.engines.shim import start_fingerprint
from support import fake_engine

pytestmark = pytest.mark.e2e

DAEMON = """
import asyncio, os, sys
from pathlib import Path
from sbproxy.config.core.model_host import EngineConfig
from sbproxy.engines.core.model import LaunchSpec
from sbproxy.engines.llama_cpp import LlamaCppDriver
from sbproxy.engines.ownership import OwnershipLedger

async def main(folder, program, model):
    driver = LlamaCppDriver(EngineConfig(path=program), engines_root=folder / "engines", run_dir=folder / "run",
                            ownership=OwnershipLedger(folder / "ownership"), environ=os.environ, threads=1)
    engine = await driver.launch(driver.acquire(lambda *row: None), LaunchSpec("chat", 5, Path(model), 256, 1))
    await engine.wait_ready(30)
    print(engine.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
"""
DEFEAT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 0); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[Any]]]:
    processes: list[subprocess.Popen[Any]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def start_daemon(
    folder: Path, program: Path, started: list[subprocess.Popen[Any]]
) -> tuple[subprocess.Popen[Any], int]:
    """A process that owns one ready engine; its pid and the engine's."""
    model = fake_engine.model_file(folder)
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(folder), str(program), str(model)], stdout=subprocess.PIPE, text=True
    )
    started.append(daemon)
    assert daemon.stdout is not None
    return daemon, int(daemon.stdout.readline())


def immortal(folder: Path) -> Path:
    """A fake engine that takes back its wish to die with its parent."""
    fake = fake_engine.install(folder / "fake")
    program = folder / "immortal"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -S -E -c '{DEFEAT}' {fake} \"$@\"\n")
    program.chmod(0o755)
    return program


def wait_for(condition: Callable[[], bool], timeout_s: float = 5) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def kill(daemon: subprocess.Popen[Any]) -> None:
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()


def test_the_kernel_ends_the_engine_of_a_killed_daemon(tmp_path: Path, started: Any) -> None:
    daemon, engine = start_daemon(tmp_path, fake_engine.install(tmp_path / "fake"), started)
    assert fake_engine.alive(engine)
    kill(daemon)
    assert wait_for(lambda: not fake_engine.alive(engine), 2)
    ledger = OwnershipLedger(tmp_path / "ownership")
    assert ledger.reap_orphans() == []
    assert list((tmp_path / "ownership").iterdir()) == []
    assert list((tmp_path / "run").glob("chat-*")) == [], "the key of the dead engine is still there"


def test_a_helper_without_the_token_in_its_environment_is_ended_too(tmp_path: Path, started: Any) -> None:
    """As vLLM's workers are: they outlive their leader, and a process title stands where their environment was."""
    fake = fake_engine.install(tmp_path / "fake")
    program = tmp_path / "leader"
    # Only the engine itself has helpers: a probe for --help would wait for one that holds its output open.
    helper_of = f'case "$*" in *--port*) env -i /bin/sleep 600 & echo $! >{tmp_path}/helper;; esac'
    program.write_text(f'#!/bin/sh\n{helper_of}\nexec {fake} "$@"\n')
    program.chmod(0o755)
    daemon, engine = start_daemon(tmp_path, program, started)
    helper = int((tmp_path / "helper").read_text())
    folder = next((tmp_path / "run").glob("chat-*"))
    visitor = subprocess.Popen(["/bin/sleep", "600"], cwd=folder)
    started.append(visitor)
    kill(daemon)
    assert wait_for(lambda: not fake_engine.alive(engine), 2)
    assert fake_engine.alive(helper)
    reaped = OwnershipLedger(tmp_path / "ownership").reap_orphans()
    assert [(each.pid, each.ended) for each in reaped] == [(helper, True)]
    assert visitor.poll() is None, "somebody who only looks into the folder is no engine"


def test_a_surviving_orphan_is_ended_by_the_next_daemon(tmp_path: Path, started: Any) -> None:
    daemon, engine = start_daemon(tmp_path, immortal(tmp_path), started)
    ledger = OwnershipLedger(tmp_path / "ownership")
    assert ledger.reap_orphans() == [], "its owner lives"
    assert fake_engine.alive(engine)
    kill(daemon)
    time.sleep(0.3)
    assert fake_engine.alive(engine), "the test is worth nothing when the engine dies by itself"
    (reaped,) = ledger.reap_orphans()
    assert (reaped.pid, reaped.engine, reaped.deployment, reaped.generation, reaped.ended) == (
        engine, "llama_cpp", "chat", 5, True,
    )  # fmt: skip
    assert not fake_engine.alive(engine)
    assert list((tmp_path / "ownership").iterdir()) == []
    assert list((tmp_path / "run").glob("chat-*")) == []
    assert ledger.reap_orphans() == []


@pytest.fixture
def innocent(started: list[subprocess.Popen[Any]]) -> subprocess.Popen[Any]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    started.append(process)
    return process


def open_ticket(ledger: OwnershipLedger, run_root: Path) -> Ticket:
    return ledger.open(engine="llama_cpp", deployment="chat", generation=1, program_sha256="0" * 64, run_root=run_root)


def rewrite(ticket: Ticket, **changes: Any) -> None:
    ticket.record.write_text(json.dumps(json.loads(ticket.record.read_text()) | changes))


def dead_owner() -> dict[str, Any]:
    return {"pid": os.getpid(), "start": "another-boot:1"}


def test_a_recycled_pid_is_left_alone(tmp_path: Path, innocent: subprocess.Popen[Any]) -> None:
    ledger = OwnershipLedger(tmp_path / "ownership")
    ticket = open_ticket(ledger, tmp_path)
    start = start_fingerprint(innocent.pid)
    assert start is not None
    boot, _, ticks = start.rpartition(":")
    earlier = {"pid": innocent.pid, "start": f"{boot}:{int(ticks) - 1}", "pgid": innocent.pid}
    rewrite(ticket, owner=dead_owner(), child=earlier)
    assert ledger.reap_orphans() == []
    assert fake_engine.alive(innocent.pid)
    assert not ticket.record.exists()


def test_the_same_pid_and_start_of_another_boot_is_left_alone(tmp_path: Path, innocent: subprocess.Popen[Any]) -> None:
    ledger = OwnershipLedger(tmp_path / "ownership")
    ticket = open_ticket(ledger, tmp_path)
    ticks = (start_fingerprint(innocent.pid) or "").rpartition(":")[2]
    rewrite(ticket, owner=dead_owner(), child={"pid": innocent.pid, "start": f"b00t:{ticks}", "pgid": innocent.pid})
    assert ledger.reap_orphans() == []
    assert fake_engine.alive(innocent.pid)


def test_our_own_record_is_left_alone(tmp_path: Path, innocent: subprocess.Popen[Any]) -> None:
    ledger = OwnershipLedger(tmp_path / "ownership")
    ticket = open_ticket(ledger, tmp_path)
    rewrite(ticket, child={"pid": innocent.pid, "start": start_fingerprint(innocent.pid), "pgid": innocent.pid})
    assert ledger.reap_orphans() == []
    assert fake_engine.alive(innocent.pid)
    assert ticket.record.exists()
    ledger.close(ticket)
    ledger.close(ticket)
    assert not ticket.record.exists()


def test_a_daemon_that_died_before_the_record_was_completed(tmp_path: Path, started: Any) -> None:
    ledger = OwnershipLedger(tmp_path / "ownership")
    ticket = open_ticket(ledger, tmp_path)
    rewrite(ticket, owner=dead_owner())
    orphan = subprocess.Popen(["sleep", "600"], env={TOKEN_VARIABLE: ticket.token, "PATH": os.environ["PATH"]})
    bystander = subprocess.Popen(["sleep", "600"], env={TOKEN_VARIABLE: "f" * 32, "PATH": os.environ["PATH"]})
    started += [orphan, bystander]
    (reaped,) = ledger.reap_orphans()
    assert reaped.pid == orphan.pid
    assert not fake_engine.alive(orphan.pid)
    assert fake_engine.alive(bystander.pid)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"owner": {}}', '{"owner": {"pid": "x", "start": "y"}}', "null"])
def test_an_unreadable_record_harms_nothing(tmp_path: Path, text: str) -> None:
    ledger = OwnershipLedger(tmp_path)
    (tmp_path / "bad.json").write_text(text)
    assert ledger.reap_orphans() == []


def test_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert OwnershipLedger(tmp_path / "none").reap_orphans() == []


def test_where_the_records_are(tmp_path: Path) -> None:
    assert ownership_directory({}, tmp_path) == tmp_path / "ownership"
    assert ownership_directory({"SBPROXY_ENGINE_OWNERSHIP_DIR": "/x/y"}, tmp_path) == Path("/x/y")


def test_an_identity_is_alive_only_as_itself(innocent: subprocess.Popen[Any]) -> None:
    start = start_fingerprint(innocent.pid)
    assert start is not None
    identity = ProcessIdentity(innocent.pid, start)
    assert identity.alive
    innocent.kill()
    assert wait_for(lambda: not identity.alive), "a zombie is not alive"


def test_a_record_of_a_daemon_in_another_container_is_let_be(tmp_path: Path, started: Any) -> None:
    """Its pid says nothing here; the lock that it holds does."""
    daemon, engine = start_daemon(tmp_path, fake_engine.install(tmp_path / "fake"), started)
    folder = tmp_path / "ownership"
    record = next(folder.glob("*.json"))
    content = json.loads(record.read_text())
    content["owner"] |= {"pid": 2**22 - 7, "start": "elsewhere:1"}
    record.write_text(json.dumps(content))
    assert OwnershipLedger(folder).reap_orphans() == []
    assert record.exists()
    assert fake_engine.alive(engine)
    kill(daemon)
    OwnershipLedger(folder).reap_orphans()
    assert list(folder.iterdir()) == []


def test_a_damaged_record_is_passed_over(tmp_path: Path) -> None:
    for name, text in (("a", "[" * 8000), ("b", "[" * 1_000_000), ("c", "{}"), ("d", "\udcff")):
        (tmp_path / f"{name}.json").write_text(text, errors="surrogateescape")
    assert OwnershipLedger(tmp_path).reap_orphans() == []


def test_the_lock_of_an_owner_goes_with_its_last_engine(tmp_path: Path) -> None:
    ledger = OwnershipLedger(tmp_path)
    facts = {"engine": "e", "deployment": "d", "generation": 1, "program_sha256": "0", "run_root": tmp_path}
    tickets = [ledger.open(**facts) for _ in range(2)]
    assert len(list(tmp_path.glob("*.owner"))) == 1
    for ticket in tickets:
        ledger.close(ticket)
    assert list(tmp_path.iterdir()) == []
