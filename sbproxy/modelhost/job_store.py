"""Durable jobs in one SQLite file (WAL), shared by the daemon and by commands that pull on their own. Blocking.

Keeps records; which moves are legal is ``core.jobs``, and who is told about them ``job_feed``.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbproxy.errors.modelhost import JobStoreUnusable
from sbproxy.modelhost.core.jobs import INTERRUPTED, TERMINAL, JobId, JobProgress, JobRecord, move

KEEP_FINISHED = 1000
KEEP_FINISHED_MS = 30 * 24 * 3600 * 1000
"""A finished job goes when it is older than 30 days or not among the newest 1000 finished ones."""

UNSTORED_EVENTS = 1_000_000
"""More than a process can have told without storing it: the next process numbers its events behind that many."""

OPEN_TIMEOUT_S = 10.0
BUSY_TIMEOUT_S = 2.0
"""How long another process's lock is waited for, at the start and then for one statement."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY,
        kind TEXT NOT NULL,
        subject TEXT NOT NULL,
        state TEXT NOT NULL,
        completed_bytes INTEGER NOT NULL,
        total_bytes INTEGER,
        current_file TEXT,
        created_at_ms INTEGER NOT NULL,
        updated_at_ms INTEGER NOT NULL,
        terminal_at_ms INTEGER,
        error TEXT,
        error_code TEXT,
        owner_pid INTEGER NOT NULL,
        owner_started TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX jobs_terminal ON jobs (terminal_at_ms);
    """,
    "ALTER TABLE jobs ADD COLUMN note TEXT;",
    # What is there was told by a daemon that numbered its events from 0 and kept no number.
    "ALTER TABLE jobs ADD COLUMN sequence INTEGER; UPDATE jobs SET sequence = 0;",
)
"""Numbered by position; ``PRAGMA user_version`` holds how many have run."""

_COLUMNS = (
    "id, kind, subject, state, completed_bytes, total_bytes, current_file,"
    " created_at_ms, updated_at_ms, terminal_at_ms, error, error_code, note, sequence"
)
_SAVE = f"""
    INSERT INTO jobs ({_COLUMNS}, owner_pid, owner_started) VALUES ({", ".join("?" * 16)})
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, completed_bytes = excluded.completed_bytes,
        total_bytes = excluded.total_bytes, current_file = excluded.current_file,
        updated_at_ms = excluded.updated_at_ms, terminal_at_ms = excluded.terminal_at_ms,
        error = excluded.error, error_code = excluded.error_code, note = excluded.note,
        sequence = coalesce(excluded.sequence, sequence)
"""  # noqa: S608 - built from literals only


def process_start(pid: int) -> str | None:
    """What tells this process from a later one with the same pid: boot and start tick. None when it is not alive.

    Where there is no /proc the fingerprint is empty and only the pid counts.
    """
    proc = Path("/proc")
    if not (proc / "self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""
    try:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    # Of a zombie nothing runs any more, although its entry is still there.
    return None if fields[0] in ("Z", "X") else f"{boot}:{fields[19]}"


class SqliteJobStore:
    """Implements ``JobStore``. Any thread may call it; statements take well under a millisecond.

    Opening creates the file (0600) and ends the jobs that a dead process left behind as ``failed`` with the code
    ``interrupted``; so does reading, for a process that died meanwhile. Jobs of another live process are left alone.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        self._owner = (os.getpid(), process_start(os.getpid()) or "")
        self._first_sequence = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=OPEN_TIMEOUT_S)
        except (OSError, sqlite3.Error) as error:
            raise JobStoreUnusable(str(path), _words(error)) from error
        try:
            self._open()
        except sqlite3.Error as error:
            self._db.close()
            raise JobStoreUnusable(str(path), _words(error)) from error

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._migrate()
        last = self._db.execute("SELECT max(sequence) FROM jobs").fetchone()[0]
        first = 0 if last is None else last + 1 + UNSTORED_EVENTS
        for number, job in enumerate(self._interrupted(), start=first):
            # Numbered only where events were: nobody can resume after a number that was never given out.
            self._write(job if last is None else replace(job, sequence=number))
            first = 0 if last is None else number + 1
        self._first_sequence = first
        self._prune()
        self._db.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")

    @property
    def first_sequence(self) -> int:
        return self._first_sequence

    def save(self, job: JobRecord) -> None:
        """Insert or update; kind, subject and creation time of a known id never change."""
        with self._at_work():
            self._write(job)
            if job.state in TERMINAL:
                self._prune()

    def get(self, job_id: JobId) -> JobRecord | None:
        with self._at_work():
            row = self._db.execute(
                f"SELECT {_COLUMNS}, owner_pid, owner_started FROM jobs WHERE id = ?",  # noqa: S608
                (job_id,),
            ).fetchone()
            return None if row is None else self._as_it_is(row)

    def jobs(self) -> list[JobRecord]:
        """All retained jobs, oldest first."""
        with self._at_work():
            rows = self._db.execute(
                f"SELECT {_COLUMNS}, owner_pid, owner_started FROM jobs ORDER BY created_at_ms, id"  # noqa: S608
            ).fetchall()
            return [self._as_it_is(row) for row in rows]

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise JobStoreUnusable(str(self._path), _words(error)) from error

    def _migrate(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
                for statement in filter(str.strip, script.split(";")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {number}")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _interrupted(self) -> list[JobRecord]:
        """The unfinished jobs of dead processes as they ended, oldest first. Nothing is written."""
        rows = self._db.execute(
            f"SELECT {_COLUMNS}, owner_pid, owner_started FROM jobs WHERE terminal_at_ms IS NULL"  # noqa: S608
            " ORDER BY created_at_ms, id"
        ).fetchall()
        seen = ((_record(columns), self._ended(_record(columns), pid, started)) for *columns, pid, started in rows)
        return [now for before, now in seen if now is not before]

    def _as_it_is(self, row: tuple[Any, ...]) -> JobRecord:
        """The record of a row; stored anew if its process has died since it was written."""
        *columns, pid, started = row
        record = _record(columns)
        now = self._ended(record, pid, started)
        if now is not record:
            # On a disk that takes nothing the answer is right all the same.
            with suppress(sqlite3.Error):
                self._write(now)
        return now

    def _ended(self, job: JobRecord, pid: int, started: str) -> JobRecord:
        if job.state in TERMINAL or process_start(pid) == started:
            return job
        text = f"the process that ran this {job.kind} ended before it was done"
        return move(job, "failed", int(self._now() * 1000), error=text, error_code=INTERRUPTED)

    def _prune(self) -> None:
        horizon = int(self._now() * 1000) - KEEP_FINISHED_MS
        self._db.execute("DELETE FROM jobs WHERE terminal_at_ms < ?", (horizon,))
        self._db.execute(
            "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE terminal_at_ms IS NOT NULL"
            " ORDER BY terminal_at_ms DESC, id DESC LIMIT -1 OFFSET ?)",
            (KEEP_FINISHED,),
        )

    def _write(self, job: JobRecord) -> None:
        progress = job.progress
        self._db.execute(
            _SAVE,
            (
                job.id,
                job.kind,
                job.subject,
                job.state,
                progress.completed_bytes,
                progress.total_bytes,
                progress.current_file,
                job.created_at_ms,
                job.updated_at_ms,
                job.terminal_at_ms,
                job.error,
                job.error_code,
                job.note,
                job.sequence,
                *self._owner,
            ),
        )


def _words(error: OSError | sqlite3.Error) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _record(row: list[object] | tuple[object, ...]) -> JobRecord:
    job_id, kind, subject, state, completed, total, file, *rest = row
    return JobRecord(job_id, kind, subject, state, JobProgress(completed, total, file), *rest)  # type: ignore[arg-type]
