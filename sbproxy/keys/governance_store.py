"""The durable books of the local governance tier: one SQLite file (WAL), held by one process alone. Blocking.

Keeps what ``core.ledger`` counts, and every reservation that is open, so that a dead process's can be booked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sbproxy.errors.governance import GovernanceStoreUnusable
from sbproxy.keys.core.governance import Reservation
from sbproxy.keys.core.ledger import AccountRow, Ledger

FILE = "governance.sqlite3"
LARGEST = (1 << 63) - 1
"""SQLite's largest integer; a sum stops there."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE accounts (
            key_id TEXT PRIMARY KEY,
            requests INTEGER NOT NULL,
            tokens INTEGER NOT NULL,
            micro_usd INTEGER NOT NULL,
            estimated_tokens INTEGER NOT NULL,
            estimated_micro_usd INTEGER NOT NULL,
            window_start INTEGER NOT NULL,
            window_requests INTEGER NOT NULL,
            window_tokens INTEGER NOT NULL,
            turn INTEGER NOT NULL,
            span_name TEXT NOT NULL,
            span_start INTEGER NOT NULL,
            span_end INTEGER NOT NULL,
            span_tokens INTEGER NOT NULL,
            span_micro_usd INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE open_reservations (
            id TEXT PRIMARY KEY,
            key_id TEXT NOT NULL,
            tokens INTEGER NOT NULL,
            micro_usd INTEGER NOT NULL,
            window_start INTEGER NOT NULL,
            turn INTEGER
        ) WITHOUT ROWID
        """,
    ),
)
"""Numbered by position; ``PRAGMA user_version`` holds how many have run."""


@dataclass(slots=True)
class Changes:
    """What one commit writes. Rows are whole, so writing a later one instead of an earlier one loses nothing."""

    rows: list[AccountRow] = field(default_factory=list)
    opened: list[Reservation] = field(default_factory=list)
    ended: Iterable[str] = ()
    forgotten: Iterable[str] = ()


class SqliteGovernanceStore:
    """Opening creates the file (0600) and locks it until :meth:`close`: two processes that count apart would both let
    a key have its whole budget. One thread at a time may call it.
    """

    def __init__(self, path: Path) -> None:
        """Raises GovernanceStoreUnusable."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
        except (OSError, sqlite3.Error) as error:
            raise GovernanceStoreUnusable(str(path), _words(error)) from error
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            # Money: a commit that is told is on the disk, also when the machine loses its power.
            self._db.execute("PRAGMA synchronous = FULL")
            self._migrate()
        except sqlite3.Error as error:
            self._db.close()
            raise GovernanceStoreUnusable(str(path), _words(error)) from error
        except GovernanceStoreUnusable:
            self._db.close()
            raise

    def load(self) -> tuple[Ledger, int]:
        """The books, with what a dead process left open booked at its ceiling, and how many those were."""
        try:
            with self._transaction():
                rows = [AccountRow(*row) for row in self._db.execute("SELECT * FROM accounts")]
                left = [Reservation(*row) for row in self._db.execute("SELECT * FROM open_reservations")]
                ledger = Ledger(rows, left)
                self._write_rows(filter(None, map(ledger.row, {one.key_id for one in left})))
                self._db.execute("DELETE FROM open_reservations")
                return ledger, len(left)
        except sqlite3.Error as error:
            raise GovernanceStoreUnusable(str(self._path), _words(error)) from error

    def write(self, changes: Changes) -> None:
        """In one transaction. Raises sqlite3.Error; nothing was written then."""
        with self._transaction():
            self._db.executemany("DELETE FROM accounts WHERE key_id = ?", ((key,) for key in changes.forgotten))
            self._write_rows(changes.rows)
            self._db.executemany(
                "INSERT OR REPLACE INTO open_reservations VALUES (?, ?, ?, ?, ?, ?)",
                ((one.id, one.key_id, one.tokens, one.micro_usd, one.window, one.span) for one in changes.opened),
            )
            self._db.executemany("DELETE FROM open_reservations WHERE id = ?", ((one,) for one in changes.ended))

    def close(self) -> None:
        self._db.close()

    def _write_rows(self, rows: Iterable[AccountRow]) -> None:
        self._db.executemany(
            f"INSERT OR REPLACE INTO accounts VALUES ({', '.join('?' * len(AccountRow._fields))})",  # noqa: S608
            ([value if isinstance(value, str) else min(value, LARGEST) for value in row] for row in rows),
        )

    def _migrate(self) -> None:
        with self._transaction():
            done = self._db.execute("PRAGMA user_version").fetchone()[0]
            if done > len(MIGRATIONS):
                raise GovernanceStoreUnusable(str(self._path), f"a newer version wrote it (schema {done})")
            for number, statements in enumerate(MIGRATIONS[done:], start=done + 1):
                for statement in statements:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {number}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _words(error: OSError | sqlite3.Error) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "another process holds it" if "locked" in str(error) else str(error)
