"""The embedded key store: one SQLite file (WAL, 0600), asked from one thread of its own.

Keeps records as ``core.written`` writes them; what a change may say is decided before it comes here.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sbproxy.errors.keys import (
    CredentialInUse,
    KeyRecordExists,
    KeyRevisionConflict,
    KeyStoreFailed,
    UnknownCredential,
    UnknownKey,
)
from sbproxy.keys.core.record import CredentialRecord, KeyRecord
from sbproxy.keys.core.written import decode_credential, decode_key, encode_credential, encode_key

BUSY_S = 3.0
"""How long another process may hold the file before a call here fails."""
NAMED_KEYS = 8
"""How many keys a refusal names."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE keys (
        key_id TEXT PRIMARY KEY,
        policy_revision INTEGER NOT NULL,
        credential_id TEXT,
        created_at REAL NOT NULL,
        document TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    "CREATE INDEX keys_by_credential ON keys (credential_id) WHERE credential_id IS NOT NULL",
    "CREATE TABLE credentials (id TEXT PRIMARY KEY, created_at REAL NOT NULL, document TEXT NOT NULL) WITHOUT ROWID",
)
"""Numbered by position; ``PRAGMA user_version`` holds how many have run."""

_Result = TypeVar("_Result")


class SqliteKeyStore:
    """A :class:`~sbproxy.keys.ports.KeyStore`. Call ``open`` once, ``close`` at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="key-store")
        self._db: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Make the file where there is none, and bring an older one to this version. Raises KeyStoreFailed."""
        await self._asked(lambda db: None)

    async def close(self) -> None:
        def shut() -> None:
            if self._db is not None:
                self._db.close()
                self._db = None

        await asyncio.get_running_loop().run_in_executor(self._thread, shut)
        self._thread.shutdown(wait=False)

    async def get_key(self, key_id: str) -> KeyRecord | None:
        def read(db: sqlite3.Connection) -> KeyRecord | None:
            row = db.execute("SELECT document FROM keys WHERE key_id = ?", (key_id,)).fetchone()
            return decode_key(row[0]) if row else None

        return await self._asked(read)

    async def list_keys(self) -> list[KeyRecord]:
        def read(db: sqlite3.Connection) -> list[KeyRecord]:
            rows = db.execute("SELECT document FROM keys ORDER BY created_at, key_id")
            return [decode_key(document) for (document,) in rows]

        return await self._asked(read)

    async def insert_key(self, record: KeyRecord) -> None:
        def write(db: sqlite3.Connection) -> None:
            with _transaction(db):
                _require_credential(db, record)
                values = (*_columns(record), record.created_at)
                statement = (
                    "INSERT INTO keys (key_id, policy_revision, credential_id, document, created_at)"
                    " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
                )
                if db.execute(statement, values).rowcount == 0:
                    raise KeyRecordExists("key", record.key_id)

        await self._asked(write)

    async def swap_key(self, record: KeyRecord, expected_revision: int) -> None:
        def write(db: sqlite3.Connection) -> None:
            with _transaction(db):
                row = db.execute("SELECT policy_revision FROM keys WHERE key_id = ?", (record.key_id,)).fetchone()
                if row is None:
                    raise UnknownKey(record.key_id)
                if row[0] != expected_revision:
                    raise KeyRevisionConflict(record.key_id, expected_revision, row[0])
                _require_credential(db, record)
                key_id, *values = _columns(record)
                db.execute(
                    "UPDATE keys SET policy_revision = ?, credential_id = ?, document = ? WHERE key_id = ?",
                    (*values, key_id),
                )

        await self._asked(write)

    async def delete_key(self, key_id: str) -> bool:
        return await self._asked(lambda db: db.execute("DELETE FROM keys WHERE key_id = ?", (key_id,)).rowcount > 0)

    async def get_credential(self, credential_id: str) -> CredentialRecord | None:
        def read(db: sqlite3.Connection) -> CredentialRecord | None:
            row = db.execute("SELECT document FROM credentials WHERE id = ?", (credential_id,)).fetchone()
            return decode_credential(row[0]) if row else None

        return await self._asked(read)

    async def list_credentials(self) -> list[CredentialRecord]:
        def read(db: sqlite3.Connection) -> list[CredentialRecord]:
            rows = db.execute("SELECT document FROM credentials ORDER BY created_at, id")
            return [decode_credential(document) for (document,) in rows]

        return await self._asked(read)

    async def insert_credential(self, record: CredentialRecord) -> None:
        def write(db: sqlite3.Connection) -> None:
            values = (record.id, record.created_at, encode_credential(record))
            if db.execute("INSERT INTO credentials VALUES (?, ?, ?) ON CONFLICT DO NOTHING", values).rowcount == 0:
                raise KeyRecordExists("credential", record.id)

        await self._asked(write)

    async def replace_credential(self, record: CredentialRecord) -> None:
        def write(db: sqlite3.Connection) -> None:
            values = (encode_credential(record), record.id)
            if db.execute("UPDATE credentials SET document = ? WHERE id = ?", values).rowcount == 0:
                raise UnknownCredential(record.id)

        await self._asked(write)

    async def delete_credential(self, credential_id: str) -> bool:
        def write(db: sqlite3.Connection) -> bool:
            with _transaction(db):
                statement = "SELECT key_id FROM keys WHERE credential_id = ? ORDER BY key_id LIMIT ?"
                bound = db.execute(statement, (credential_id, NAMED_KEYS)).fetchall()
                if bound:
                    raise CredentialInUse(credential_id, tuple(row[0] for row in bound))
                return db.execute("DELETE FROM credentials WHERE id = ?", (credential_id,)).rowcount > 0

        return await self._asked(write)

    async def _asked(self, call: Callable[[sqlite3.Connection], _Result]) -> _Result:
        def run() -> _Result:
            try:
                return call(self._connected())
            except (sqlite3.Error, OSError, ValueError) as error:
                raise KeyStoreFailed(str(self._path), str(error)) from error

        # Shielded: what was begun is finished, or a caller that leaves could leave the connection in a transaction.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, run))

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path.touch(mode=0o600)
            db = sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_S)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                # A revocation that was answered has to outlive a power cut.
                db.execute("PRAGMA synchronous = FULL")
                self._migrate(db)
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db

    def _migrate(self, db: sqlite3.Connection) -> None:
        with _transaction(db):
            done = db.execute("PRAGMA user_version").fetchone()[0]
            if done > len(MIGRATIONS):
                raise KeyStoreFailed(str(self._path), f"a newer version wrote it (schema {done}); run that version")
            for number, statement in enumerate(MIGRATIONS[done:], start=done + 1):
                db.execute(statement)
                db.execute(f"PRAGMA user_version = {number}")


def _columns(record: KeyRecord) -> tuple[str, int, str | None, str]:
    return record.key_id, record.policy_revision, record.credential_id, encode_key(record)


def _require_credential(db: sqlite3.Connection, record: KeyRecord) -> None:
    wanted = record.credential_id
    if wanted is not None and not db.execute("SELECT 1 FROM credentials WHERE id = ?", (wanted,)).fetchone():
        raise UnknownCredential(wanted)


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
