"""Takes every finished request to the request log, the metrics and the value ledger.

Implements the gateway's ``RequestSink``.
"""

from __future__ import annotations

from sbproxy.observe.core.record import RequestRecord
from sbproxy.observe.metrics import Metrics
from sbproxy.observe.request_log import RequestLog
from sbproxy.observe.value_ledger import ValueLedger


class RequestObserver:
    """Called on the event loop for each request: a few microseconds, no I/O, nothing raised."""

    def __init__(self, log: RequestLog, metrics: Metrics, value: ValueLedger) -> None:
        self._log = log
        self._totals = metrics.requests
        self._value = value

    def finished(self, record: RequestRecord) -> None:
        self._log.append(record)
        self._totals.finished(record)
        self._value.finished(record)
