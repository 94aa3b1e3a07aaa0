"""The local tier of governance: exact in this process, durable within a tenth of a second.

Counting is ``core.ledger``; a thread of its own commits what changed in groups, so that no request waits for a disk.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from sbproxy.errors.governance import GovernanceRefusal
from sbproxy.keys.core.governance import (
    Ask,
    BackendHealth,
    Limits,
    Reservation,
    UsageSnapshot,
)
from sbproxy.keys.governance_store import Changes, SqliteGovernanceStore

LOG = logging.getLogger("sbproxy.keys")

COMMIT_S = 0.1
"""The most that a killed process forgets. A clean stop forgets nothing."""


class LocalGovernor:
    """Implements ``Governor``; answers everything at once, on the event loop.

    There are no leases: while the process lives, its reservations do, and those that it leaves open, by a kill or by
    stopping, are booked at their ceilings when the file is opened next. When the disk fails, limits are enforced from
    memory all the same, ``usage`` says ``degraded``, and the next commit that succeeds writes everything. One for each
    process and file: it stays when the configuration is reloaded, for limits come with each request.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Blocking. Raises GovernanceStoreUnusable: without the file nobody knows what keys have spent."""
        self._store = SqliteGovernanceStore(path)
        try:
            self._ledger, self.recovered = self._store.load()
        except BaseException:
            self._store.close()
            raise
        if self.recovered:
            LOG.warning("%d requests were open when the last process ended; booked at their ceilings", self.recovered)
        self._clock = clock
        self._ids = count()
        # Between the loop and the writer, which takes what changed; held for microseconds.
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._opened: dict[str, Reservation] = {}
        self._ended: set[str] = set()
        self._forgotten: set[str] = set()
        self._fault: str | None = None
        self._pending = False
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._writer = threading.Thread(target=self._keep_writing, name="governance-writer", daemon=True)
        self._writer.start()

    def try_reserve(self, key_id: str, limits: Limits, ask: Ask, now: float) -> Reservation | GovernanceRefusal:
        with self._lock:
            answer = self._ledger.take(str(next(self._ids)), key_id, limits, ask, now)
            if type(answer) is Reservation:
                self._opened[answer.id] = answer
                self._note(key_id)
            return answer

    async def reserve(self, key_id: str, limits: Limits, ask: Ask) -> Reservation | GovernanceRefusal:
        return self.try_reserve(key_id, limits, ask, self._clock())

    async def renew(self, reservation: Reservation) -> bool:
        with self._lock:
            return self._ledger.is_open(reservation.id)

    def settle(self, reservation: Reservation, tokens: int, micro_usd: int, *, estimated: bool) -> None:
        with self._lock:
            if self._ledger.settle(reservation.id, tokens, micro_usd, estimated=estimated) is not None:
                self._note_end(reservation)

    def release(self, reservation: Reservation) -> None:
        with self._lock:
            if self._ledger.release(reservation.id) is not None:
                self._note_end(reservation)

    async def usage(self, key_id: str, limits: Limits) -> UsageSnapshot:
        fault = self._fault
        health = BackendHealth("local", "healthy" if fault is None else "degraded", fault)
        with self._lock:
            return self._ledger.usage(key_id, limits, self._clock(), health)

    async def forget(self, key_id: str) -> None:
        with self._lock:
            self._ended.update(self._ledger.forget(key_id))
            self._forgotten.add(key_id)
            self._note(key_id)

    async def close(self) -> None:
        """Write everything and let go of the file; once is enough."""
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """As :meth:`close`, blocking."""
        self._stopping.set()
        self._wake.set()
        self._writer.join()

    def _note(self, key_id: str) -> None:
        self._changed.add(key_id)
        if not self._pending:
            self._pending = True
            self._wake.set()

    def _note_end(self, reservation: Reservation) -> None:
        # One that came and went between two commits is never written at all.
        if self._opened.pop(reservation.id, None) is None:
            self._ended.add(reservation.id)
        self._note(reservation.key_id)

    def _keep_writing(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._stopping.wait(COMMIT_S)
            self._wake.clear()
            self._write()
        self._write()
        self._store.close()

    def _write(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
            opened, self._opened = self._opened, {}
            ended, self._ended = self._ended, set()
            forgotten, self._forgotten = self._forgotten, set()
            self._pending = False
            rows = [row for row in map(self._ledger.row, changed) if row is not None]
        if not changed:
            return
        try:
            self._store.write(Changes(rows, list(opened.values()), ended, forgotten))
        except sqlite3.Error as error:
            if self._fault is None:
                LOG.error("governance ledger is not written, limits are enforced from memory: %s", error)
            self._fault = str(error)
            self._take_back(changed, opened, ended, forgotten)
        else:
            if self._fault is not None:
                LOG.warning("governance ledger is written again")
            self._fault = None

    def _take_back(
        self, changed: set[str], opened: dict[str, Reservation], ended: set[str], forgotten: set[str]
    ) -> None:
        with self._lock:
            self._changed |= changed
            self._ended |= ended
            self._forgotten |= forgotten
            # One that ended meanwhile is among the ended, as if it had been written; deleting nothing does no harm.
            self._opened |= {one.id: one for one in opened.values() if self._ledger.is_open(one.id)}
            self._pending = True
            self._wake.set()
