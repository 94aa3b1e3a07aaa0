"""Durable jobs in one SQLite file (WAL), shared by the daemon and by commands that pull on their own. Blocking.

Keeps records; which moves are legal is ``core.jobs``, and who is told about them ``job_feed``.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sbproxy.errors.modelhost import JobStoreUnusable
from sbproxy.modelhost.core.jobs import TERMINAL, JobId, JobProgress, JobRecord, move

KEEP_FINISHED = 1000
KEEP_FINISHED_MS = 30 * 24 * 3600 * 1000
"""A finished job goes when it is older than 30 days or not among the newest 1000 finished ones."""

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
)
"""Numbered by position; ``PRAGMA user_version`` holds how many have run."""

_COLUMNS = (
    "id, kind, subject, state, completed_bytes, total_bytes, current_file,"
    " created_at_ms, updated_at_ms, terminal_at_ms, error, error_code, note"
)
_SAVE = f"""
    INSERT INTO jobs ({_COLUMNS}, owner_pid, owner_started) VALUES ({", ".join("?" * 15)})
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, completed_bytes = excluded.completed_bytes,
        total_bytes = excluded.total_bytes, current_file = excluded.current_file,
        updated_at_ms = excluded.updated_at_ms, terminal_at_ms = excluded.terminal_at_ms,
        error = excluded.error, error_code = excluded.error_code, note = excluded.note
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
    ``interrupted``; jobs of another live process are left alone. It raises JobStoreUnusable.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._owner = (os.getpid(), process_start(os.getpid()) or "")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
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
        self._close_interrupted()
        self._prune()

    def save(self, job: JobRecord) -> None:
        """Insert or update; kind, subject and creation time of a known id never change."""
        with self._lock:
            self._write(job)
            if job.state in TERMINAL:
                self._prune()

    def get(self, job_id: JobId) -> JobRecord | None:
        with self._lock:
            row = self._db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (job_id,)).fetchone()  # noqa: S608
        return None if row is None else _record(row)

    def jobs(self) -> list[JobRecord]:
        """All retained jobs, oldest first."""
        with self._lock:
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM jobs ORDER BY created_at_ms, id").fetchall()  # noqa: S608
        return [_record(row) for row in rows]

    def close(self) -> None:
        with self._lock:
            self._db.close()

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

    def _close_interrupted(self) -> None:
        rows = self._db.execute(
            f"SELECT {_COLUMNS}, owner_pid, owner_started FROM jobs WHERE terminal_at_ms IS NULL"  # noqa: S608
        ).fetchall()
        for *columns, pid, started in rows:
            if process_start(pid) != started:
                job = _record(columns)
                text = f"the process that ran this {job.kind} ended before it was done"
                failed = move(job, "failed", int(self._now() * 1000), error=text, error_code="interrupted")
                self._write(failed)

    def _prune(self) -> None:
        horizon = int(self._now() * 1000) - KEEP_FINISHED_MS
        self._db.execute(
            "DELETE FROM jobs WHERE terminal_at_ms < max(?, coalesce((SELECT terminal_at_ms FROM jobs"
            " WHERE terminal_at_ms IS NOT NULL ORDER BY terminal_at_ms DESC LIMIT 1 OFFSET ?), 0))",
            (horizon, KEEP_FINISHED - 1),
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
                *self._owner,
            ),
        )


def _words(error: OSError | sqlite3.Error) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _record(row: list[object] | tuple[object, ...]) -> JobRecord:
    job_id, kind, subject, state, completed, total, file, *rest = row
    return JobRecord(job_id, kind, subject, state, JobProgress(completed, total, file), *rest)  # type: ignore[arg-type]
