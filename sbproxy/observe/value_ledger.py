"""Counts what local serving saves and spilled requests cost: a dictionary look-up and two additions a request.

Lives on the event loop; every few seconds what came since is merged into the store, in a worker thread. A process
that is killed loses at most those seconds. What a completion is worth is ``core.value``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from sbproxy.errors.observe import ValueStoreUnusable
from sbproxy.observe.core.record import RequestRecord
from sbproxy.observe.core.scrub import scrub
from sbproxy.observe.core.value import OTHER, Lane, Price, PriceTable, ValueReport, lane_for

FLUSH_S = 5.0
MAX_KNOWN = 4096
"""Combinations of origin, provider and model whose price and lane are kept at hand."""
_LONGEST_NAME = 256

log = logging.getLogger(__name__)

_Counted = tuple[Price, Lane]


class ValueStore(Protocol):
    """Durable lanes. Blocking. Implemented by ``sbproxy.observe.value_store``."""

    def merge(self, added: dict[str, Lane]) -> dict[str, Lane]:
        """Add to the stored lanes and return all of them; ValueStoreUnusable when nothing was added."""
        ...


class ValueLedger:
    """In memory until the store can be used; then what came before is merged into it."""

    def __init__(self, store: ValueStore, *, flush_s: float = FLUSH_S) -> None:
        self._store = store
        self._flush_s = flush_s
        self._prices = PriceTable()
        self._stored: dict[str, Lane] | None = None
        self._storing: dict[str, Lane] = {}
        self._pending: dict[str, Lane] = {}
        self._names: set[str] = set()
        self._known: dict[tuple[str, str | None, str | None], _Counted | None] = {}
        self._refused = False
        self._overflowed = False
        self._flushing = asyncio.Lock()

    def publish(self, prices: PriceTable) -> None:
        """Use other prices from the next completion on."""
        self._prices = prices
        self._known.clear()

    def finished(self, record: RequestRecord) -> None:
        """Called for every request. Completions with a usage count; broken and refused ones are worth nothing."""
        tokens_in = record.tokens_in
        if tokens_in is None or record.error_class is not None or not 200 <= record.status < 300:
            return
        key = (record.origin, record.provider, record.model)
        try:
            counted = self._known[key]
        except KeyError:
            counted = self._look_up(key)
        if counted is None:
            return
        price, lane = counted
        parts = price.parts(tokens_in, record.tokens_out or 0)
        if record.deployment is not None:
            lane.local += 1
            lane.saved += parts
        else:
            lane.cloud += 1
            lane.spent += parts

    def report(self) -> ValueReport:
        """Everything up to now, stored or not."""
        lanes: dict[str, Lane] = {}
        for source in (self._stored or {}, self._storing, self._pending):
            for model, lane in source.items():
                lanes.setdefault(model, Lane()).add(lane)
        return ValueReport.of({model: lane for model, lane in lanes.items() if lane.local or lane.cloud})

    async def run(self) -> None:
        """Read what is stored, then store what comes, until cancelled; a last ``flush`` is the owner's."""
        while True:
            await self.flush()
            await asyncio.sleep(self._flush_s)

    async def flush(self) -> None:
        """Store what came since the last time; on failure it is kept and tried again."""
        async with self._flushing:
            if self._stored is not None and not self._pending:
                return
            self._storing, self._pending = self._pending, {}
            # The lanes at hand belong to what is being stored now.
            self._known.clear()
            merging = asyncio.ensure_future(asyncio.to_thread(self._store.merge, self._storing))
            cancelled = False
            while not merging.done():
                try:
                    await asyncio.wait((merging,))
                except asyncio.CancelledError:
                    # Whether it was stored decides whether it is counted again.
                    cancelled = True
            self._settle(merging)
            if cancelled:
                raise asyncio.CancelledError

    def _settle(self, merging: asyncio.Future[dict[str, Lane]]) -> None:
        storing, self._storing = self._storing, {}
        try:
            self._stored = merging.result()
        except ValueStoreUnusable as error:
            for model, lane in storing.items():
                self._pending.setdefault(model, Lane()).add(lane)
            self._known.clear()
            if not self._refused:
                log.error("value_ledger_in_memory: %s", error)
            self._refused = True
            return
        self._names = {*self._stored, *self._pending}
        if self._refused:
            log.warning("value_ledger_durable_again")
        self._refused = False

    def _look_up(self, key: tuple[str, str | None, str | None]) -> _Counted | None:
        origin, provider, model = key
        counted = None
        if provider is not None and model is not None:
            price = self._prices.find(origin, provider, model)
            counted = None if price is None else (price, self._lane(scrub(model, _LONGEST_NAME)))
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[key] = counted
        return counted

    def _lane(self, model: str) -> Lane:
        name = lane_for(model, self._names)
        if name == OTHER and model != OTHER and not self._overflowed:
            self._overflowed = True
            log.warning("value_ledger_overflow: models beyond the first 999 are counted together as %s", OTHER)
        self._names.add(name)
        return self._pending.setdefault(name, Lane())
