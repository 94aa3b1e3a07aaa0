"""The durable lanes of the value ledger: one SQLite file (WAL) under the cache root. Blocking.

Merges what is given into what is stored, so that several processes may count in one file; what counts is
``core.value``'s to decide.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from sbproxy.errors.observe import ValueStoreUnusable
from sbproxy.observe.core.value import MAX_MICROS, PARTS, Lane, lane_for

FILE = "value-ledger.sqlite3"
BUSY_S = 3.0
"""How long another process may hold the file before a call here fails."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE value_lanes (
        model TEXT PRIMARY KEY,
        local_completions INTEGER NOT NULL,
        saved_micros INTEGER NOT NULL,
        saved_rest INTEGER NOT NULL,
        cloud_completions INTEGER NOT NULL,
        cloud_spent_micros INTEGER NOT NULL,
        cloud_spent_rest INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
)
"""Numbered by position; ``PRAGMA user_version`` holds how many have run. A rest is millionths of a micro."""


class SqliteValueStore:
    """Opens the file for each call and closes it again, for there is one call in a few seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def merge(self, added: Mapping[str, Lane]) -> dict[str, Lane]:
        """Add to the stored lanes and return all of them. The first lane makes the file (0600).

        In one transaction: when it raises ValueStoreUnusable, nothing was added.
        """
        try:
            if not added and not self._path.exists():
                return {}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            with closing(sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_S)) as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
                with _transaction(db):
                    self._migrate(db)
                    return _merged(db, added)
        except OSError as error:
            raise ValueStoreUnusable(str(self._path), error.strerror or str(error)) from error
        except sqlite3.Error as error:
            raise ValueStoreUnusable(str(self._path), str(error)) from error

    def _migrate(self, db: sqlite3.Connection) -> None:
        done = db.execute("PRAGMA user_version").fetchone()[0]
        if done > len(MIGRATIONS):
            raise ValueStoreUnusable(str(self._path), f"a newer version wrote it (schema {done})")
        for number, statement in enumerate(MIGRATIONS[done:], start=done + 1):
            db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")


def _merged(db: sqlite3.Connection, added: Mapping[str, Lane]) -> dict[str, Lane]:
    lanes = {
        model: Lane(local, _joined(saved, saved_rest), cloud, _joined(spent, spent_rest))
        for model, local, saved, saved_rest, cloud, spent, spent_rest in db.execute(
            "SELECT model, local_completions, saved_micros, saved_rest,"
            " cloud_completions, cloud_spent_micros, cloud_spent_rest FROM value_lanes"
        )
    }
    changed = set()
    for model, lane in added.items():
        # Another process may have taken the last room since this one looked.
        kept = lane_for(model, lanes)
        lanes.setdefault(kept, Lane()).add(lane)
        changed.add(kept)
    for model in changed:
        lane = lanes[model]
        db.execute(
            "INSERT OR REPLACE INTO value_lanes VALUES (?, ?, ?, ?, ?, ?, ?)",
            (model, min(lane.local, MAX_MICROS), *_split(lane.saved), min(lane.cloud, MAX_MICROS), *_split(lane.spent)),
        )
    return lanes


def _joined(whole: int, rest: int) -> int:
    return whole * PARTS + rest


def _split(parts: int) -> tuple[int, int]:
    return divmod(min(parts, MAX_MICROS * PARTS), PARTS)


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
