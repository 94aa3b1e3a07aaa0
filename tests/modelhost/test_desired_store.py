"""The durable deployment map over real files and processes: monotonic, exclusive, honest about its failures."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sqlite3
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sbproxy.errors.modelhost import DesiredStoreFailed, RevisionConflict
from sbproxy.modelhost.core.desired_document import DeploymentDraft, RevisionDocument
from sbproxy.modelhost.desired_store import BUSY_S, SqliteDesiredStore


def document(revision: int, count: int = 1) -> RevisionDocument:
    draft = DeploymentDraft(model="one", cold_start="wait")
    return RevisionDocument.of(revision, "cat-1", {f"d{number}": draft for number in range(count)})


@pytest.fixture
def store(tmp_path: Path) -> SqliteDesiredStore:
    made = SqliteDesiredStore(tmp_path / "state" / "desired.sqlite3")
    made.create()
    return made


def test_nothing_is_stored_and_nothing_is_made_by_looking(tmp_path: Path) -> None:
    unborn = SqliteDesiredStore(tmp_path / "none" / "desired.sqlite3")
    assert unborn.read() is None
    assert not (tmp_path / "none").exists()


def test_the_file_is_the_owners_alone(store: SqliteDesiredStore) -> None:
    store.replace(None, document(1))
    connection = sqlite3.connect(store.path)
    connection.execute("SELECT * FROM desired").fetchall()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.path.parent.iterdir()}
    connection.close()
    assert set(modes.values()) == {0o600}, modes
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_what_was_stored_is_read_by_the_next_process(store: SqliteDesiredStore) -> None:
    assert store.read() is None
    store.replace(None, document(1))
    store.replace(1, document(2, 3))
    assert SqliteDesiredStore(store.path).read() == document(2, 3)
    connection = sqlite3.connect(store.path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize("expected", [None, 0, 1, 3])
def test_only_the_revision_that_is_there_is_replaced(store: SqliteDesiredStore, expected: int | None) -> None:
    store.replace(None, document(1))
    store.replace(1, document(2))
    with pytest.raises(RevisionConflict) as caught:
        store.replace(expected, document(9))
    assert (caught.value.expected_revision, caught.value.actual_revision) == (expected, 2)
    assert store.read() == document(2)


def test_of_two_with_the_same_revision_one_wins(store: SqliteDesiredStore) -> None:
    def race(count: int) -> bool:
        try:
            SqliteDesiredStore(store.path).replace(None, document(1, count))
        except RevisionConflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(1, 9)))
    assert won.count(True) == 1
    assert store.read() == document(1, won.index(True) + 1)


def _count_up(path: Path, steps: int) -> None:
    store = SqliteDesiredStore(path)
    done = 0
    while done < steps:
        stored = store.read()
        revision = stored.revision if stored is not None else None
        try:
            store.replace(revision, document((revision or 0) + 1))
        except RevisionConflict:
            continue
        done += 1


def test_processes_lose_no_update(store: SqliteDesiredStore) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_count_up, args=(store.path, 10)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(40)
    assert [worker.exitcode for worker in workers] == [0, 0]
    stored = store.read()
    assert stored is not None
    assert stored.revision == 20


def test_a_store_that_another_holds_is_refused_in_time(store: SqliteDesiredStore) -> None:
    store.replace(None, document(1))
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert store.read() == document(1), "reading goes on beside a writer"
        began = time.monotonic()
        with pytest.raises(DesiredStoreFailed, match="another process"):
            store.replace(1, document(2))
        assert time.monotonic() - began < BUSY_S + 2
    finally:
        other.execute("ROLLBACK")
        other.close()
    store.replace(1, document(2))


def in_process(work: object, *args: object) -> int | None:
    process = multiprocessing.get_context("spawn").Process(target=work, args=args)
    process.start()
    process.join(40)
    return process.exitcode


def _fill_the_disk(path: Path) -> None:
    # The limit of a file's size stands in for a full disk: the write fails in the same place.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, resource.RLIM_INFINITY))
    try:
        SqliteDesiredStore(path).replace(1, document(2, 500))
    except DesiredStoreFailed:
        os._exit(7)
    os._exit(0)


def test_a_disk_that_is_full_keeps_what_was_there(store: SqliteDesiredStore) -> None:
    store.replace(None, document(1))
    assert in_process(_fill_the_disk, store.path) == 7
    assert store.read() == document(1)
    store.replace(1, document(2, 500))


def _die_while_writing(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE desired SET revision = 2, document = ?", (document(2).encoded(),))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_writer_that_is_killed_leaves_the_old_revision(store: SqliteDesiredStore) -> None:
    store.replace(None, document(1))
    assert in_process(_die_while_writing, store.path) == -signal.SIGKILL
    assert store.read() == document(1)
    store.replace(1, document(2))


def test_a_newer_schema_and_foreign_files_are_refused(store: SqliteDesiredStore, tmp_path: Path) -> None:
    connection = sqlite3.connect(store.path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DesiredStoreFailed, match="newer version"):
        store.read()
    foreign = tmp_path / "notes.txt"
    foreign.write_text("not a database at all, but long enough to look like one" * 40)
    with pytest.raises(DesiredStoreFailed, match="not a database"):
        SqliteDesiredStore(foreign).read()
    with pytest.raises(DesiredStoreFailed):
        SqliteDesiredStore(tmp_path).create()
    with pytest.raises(DesiredStoreFailed):
        SqliteDesiredStore(foreign / "below").create()


def test_a_damaged_document_is_refused(store: SqliteDesiredStore) -> None:
    store.replace(None, document(1))
    connection = sqlite3.connect(store.path, isolation_level=None)
    connection.execute("UPDATE desired SET document = ?", (document(1).encoded().replace(b'"one"', b'"two"'),))
    connection.close()
    with pytest.raises(DesiredStoreFailed, match="content_digest"):
        store.read()
