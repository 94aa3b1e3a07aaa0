"""The durable deployment map of ``admin_managed``: one SQLite file (WAL) for all processes of this node. Blocking.

Keeps the newest revision and swaps it only against the one before; what a map may say is ``core.desired_document``.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sbproxy.errors.modelhost import DesiredStoreFailed, RevisionConflict
from sbproxy.modelhost.core.desired_document import RevisionDocument

BUSY_S = 3.0
"""How long another process may hold the store before a call here fails."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE desired (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        revision INTEGER NOT NULL,
        document BLOB NOT NULL,
        written_at_ms INTEGER NOT NULL
    )
    """,
)
"""Numbered by position; ``PRAGMA user_version`` holds how many have run."""


class SqliteDesiredStore:
    """Opens the file for each call and closes it again: calls are rare, and nothing has to be taken down.

    Every method raises DesiredStoreFailed, within :data:`BUSY_S` seconds where another process holds the store.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now

    def create(self) -> None:
        """Make the file (0600) where there is none, and bring an older one to this version."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.touch(mode=0o600)
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from error
        with self._open() as db:
            _migrate(db)

    def read(self) -> RevisionDocument | None:
        """The newest revision; None before the first one, and where there is no file yet, which is not made."""
        try:
            there = self.path.exists()
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from error
        if not there:
            return None
        with self._open() as db:
            if not db.execute("PRAGMA user_version").fetchone()[0]:
                return None
            return self._current(db)

    def replace(self, expected: int | None, document: RevisionDocument) -> None:
        """Make ``document`` the newest revision. Raises RevisionConflict when it is not the one after ``expected``
        by now, whoever was faster; then nothing has changed."""
        data = document.encoded()
        with self._open() as db:
            _migrate(db)
            with _transaction(db):
                row = db.execute("SELECT revision FROM desired").fetchone()
                actual = row[0] if row else None
                if actual != expected:
                    raise RevisionConflict(expected, actual)
                db.execute(
                    "INSERT OR REPLACE INTO desired (only, revision, document, written_at_ms) VALUES (1, ?, ?, ?)",
                    (document.revision, data, int(self._now() * 1000)),
                )

    def _current(self, db: sqlite3.Connection) -> RevisionDocument | None:
        row = db.execute("SELECT document FROM desired").fetchone()
        if row is None:
            return None
        try:
            return RevisionDocument.decoded(row[0])
        except (ValueError, AttributeError) as error:
            raise self._failed(f"{error}; restore the file from a copy, or move it away to begin anew") from None

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            db = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_S)
        except sqlite3.Error as error:
            raise self._failed(str(error)) from error
        try:
            db.execute("PRAGMA journal_mode = WAL")
            # The answer promises that the revision outlives a power cut, so its commit is synced.
            db.execute("PRAGMA synchronous = FULL")
            newest = db.execute("PRAGMA user_version").fetchone()[0]
            if newest > len(MIGRATIONS):
                raise self._failed(f"it was written by a newer version (schema {newest}); run that version")
            yield db
        except sqlite3.Error as error:
            raise self._failed(_reason(error)) from error
        finally:
            db.close()

    def _failed(self, reason: str) -> DesiredStoreFailed:
        return DesiredStoreFailed(str(self.path), reason)


def _migrate(db: sqlite3.Connection) -> None:
    if db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS):
        return
    with _transaction(db):
        # Asked again: another process may have brought it up before we got the lock.
        done = db.execute("PRAGMA user_version").fetchone()[0]
        for number, statement in enumerate(MIGRATIONS[done:], start=done + 1):
            db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Under the write lock that SQLite holds across processes."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _reason(error: sqlite3.Error) -> str:
    if "locked" in str(error):
        return f"another process holds it for more than {BUSY_S:g} s; try again, or find that process"
    return str(error)
