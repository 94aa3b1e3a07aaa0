"""What finished requests add up to: the http, AI and dispatch series of contracts section 40.

The hot path adds to one cell per combination of labels; the families are summed from the cells at scrape time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from sbproxy.observe.core.record import RequestRecord
from sbproxy.observe.series import (
    LATENCY_BUCKETS,
    OTHER,
    LabelBounds,
    counter_family,
    empty_buckets,
    histogram_family,
)

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
TENANT = "__default__"
"""An origin that declares no tenant (document 2); no version before keys knows another."""
MAX_CELLS = 2_000
"""Combinations kept apart; each costs about twenty samples of a scrape, which runs on the event loop."""


class Labels(NamedTuple):
    """One combination, bounded. Empty text: does not apply."""

    hostname: str
    method: str
    status: str
    error_type: str
    provider: str
    model: str
    surface: str
    deployment: str
    route_class: str
    outcome: str
    broke_after_start: bool

    @property
    def attributed(self) -> tuple[str, ...]:
        return (self.hostname, self.provider, self.model, self.surface, TENANT, "")


_EVERYTHING_ELSE = Labels(OTHER, OTHER, OTHER, "", "", "", "", "", "", OTHER, False)
_ATTRIBUTED = ("origin", "provider", "model", "surface", "tenant_id", "api_key_id")


class Cell:
    """The sums of one combination of labels."""

    __slots__ = ("buckets", "bytes_in", "bytes_out", "count", "labels", "seconds", "tokens_in", "tokens_out")

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.count = self.bytes_in = self.bytes_out = self.tokens_in = self.tokens_out = 0
        self.seconds = 0.0
        self.buckets = empty_buckets()


class RequestTotals:
    """Counts on the event loop; a scrape may run there or in a thread."""

    def __init__(self, bounds: LabelBounds) -> None:
        self._bounds = bounds
        self._cells: dict[Labels, Cell] = {}
        self._known: dict[tuple[object, ...], Cell] = {}

    def finished(self, record: RequestRecord) -> None:
        key = (
            record.origin,
            record.method,
            record.status,
            record.error_class,
            record.provider,
            record.model,
            record.surface,
            record.deployment,
            record.route_class,
            record.streamed,
        )
        cell = self._known.get(key) or self._admit(key, record)
        seconds = record.latency_ms / 1000
        cell.count += 1
        cell.seconds += seconds
        cell.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        cell.bytes_in += record.bytes_in
        cell.bytes_out += record.bytes_out
        cell.tokens_in += record.tokens_in or 0
        cell.tokens_out += record.tokens_out or 0

    def families(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        cells = list(self._cells.values())
        served = [cell for cell in cells if cell.labels.provider]
        yield from _http_families(cells)
        yield from _ai_families(served)
        yield _counted(
            "sbproxy_managed_replica_attempts",
            "Requests sent to a managed replica, by how they ended.",
            ("provider", "deployment", "route_class", "outcome"),
            [cell for cell in served if cell.labels.deployment],
            lambda labels: (labels.provider, labels.deployment, labels.route_class, labels.outcome),
        )

    def _admit(self, key: tuple[object, ...], record: RequestRecord) -> Cell:
        labels = self._labels(record)
        if labels not in self._cells and len(self._cells) >= MAX_CELLS:
            labels = _EVERYTHING_ELSE
        cell = self._cells.setdefault(labels, Cell(labels))
        if len(self._known) >= 2 * MAX_CELLS:
            # Only the short cut is dropped. The sums stay in the cells.
            self._known.clear()
        self._known[key] = cell
        return cell

    def _labels(self, record: RequestRecord) -> Labels:
        def bound(label: str, value: str | None) -> str:
            return self._bounds.bound("sbproxy_requests", label, value) if value else ""

        # Before a provider is chosen the model is whatever the caller wrote, and the deployment unknown.
        routed = record.provider is not None
        failed = record.error_class is not None or record.status >= 400
        return Labels(
            hostname=bound("hostname", record.origin),
            method=record.method if record.method in METHODS else OTHER,
            status=str(record.status) if 100 <= record.status <= 599 else OTHER,
            error_type=bound("error_type", record.error_class),
            provider=bound("provider", record.provider),
            model=bound("model", record.model if routed else None),
            surface=bound("surface", record.surface),
            deployment=bound("deployment", record.deployment),
            route_class=bound("route_class", record.route_class),
            outcome="error" if failed else "success",
            broke_after_start=record.streamed and record.error_class is not None and record.status < 400,
        )


def _counted(
    name: str,
    text: str,
    label_names: tuple[str, ...],
    cells: list[Cell],
    values: Callable[[Labels], tuple[str, ...]],
    amount: Callable[[Cell], int] = lambda cell: cell.count,
) -> CounterMetricFamily:
    sums: dict[tuple[str, ...], float] = {}
    for cell in cells:
        key = values(cell.labels)
        sums[key] = sums.get(key, 0) + amount(cell)
    return counter_family(name, text, label_names, sums)


def _timed(
    name: str, text: str, label_names: tuple[str, ...], cells: list[Cell], values: Callable[[Labels], tuple[str, ...]]
) -> HistogramMetricFamily:
    sums: dict[tuple[str, ...], tuple[list[int], float]] = {}
    for cell in cells:
        key = values(cell.labels)
        buckets, seconds = sums.get(key, (empty_buckets(), 0.0))
        merged = [left + right for left, right in zip(buckets, cell.buckets, strict=True)]
        sums[key] = (merged, seconds + cell.seconds)
    return histogram_family(name, text, label_names, ((key, *cell) for key, cell in sums.items()))


def _directed(
    name: str, text: str, label_names: tuple[str, ...], sums: dict[tuple[str, ...], float]
) -> CounterMetricFamily:
    return counter_family(name, text, (*label_names, "direction"), sums)


def _http_families(cells: list[Cell]) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
    def verb(labels: Labels) -> tuple[str, ...]:
        return (labels.hostname, labels.method, labels.status)

    yield _counted("sbproxy_requests", "Finished requests.", ("hostname", "method", "status"), cells, verb)
    yield _counted("sbproxy_origin_requests", "Finished requests.", ("origin", "method", "status"), cells, verb)
    yield _timed(
        "sbproxy_request_duration_seconds", "End to end.", ("hostname",), cells, lambda labels: (labels.hostname,)
    )
    yield _counted(
        "sbproxy_errors",
        "Requests that failed.",
        ("hostname", "error_type"),
        [cell for cell in cells if cell.labels.error_type],
        lambda labels: (labels.hostname, labels.error_type),
    )
    sums: dict[tuple[str, ...], float] = {}
    for cell in cells:
        for direction, amount in (("in", cell.bytes_in), ("out", cell.bytes_out)):
            key = (cell.labels.hostname, direction)
            sums[key] = sums.get(key, 0) + amount
    yield _directed("sbproxy_bytes", "Body bytes.", ("origin",), sums)


def _ai_families(served: list[Cell]) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
    yield _counted(
        "sbproxy_ai_requests_attributed",
        "Requests that a provider was chosen for.",
        (*_ATTRIBUTED, "outcome"),
        served,
        lambda labels: (*labels.attributed, labels.outcome),
    )
    yield _timed(
        "sbproxy_ai_request_duration_attributed_seconds",
        "End to end.",
        _ATTRIBUTED,
        served,
        lambda labels: labels.attributed,
    )
    sums: dict[tuple[str, ...], float] = {}
    for cell in served:
        for direction, amount in (("input", cell.tokens_in), ("output", cell.tokens_out)):
            key = (*cell.labels.attributed, direction)
            sums[key] = sums.get(key, 0) + amount
    yield _directed("sbproxy_ai_tokens_attributed", "Prompt and completion tokens.", _ATTRIBUTED, sums)
    yield _counted(
        "sbproxy_ai_surface_requests",
        "Requests by API surface.",
        ("surface",),
        [cell for cell in served if cell.labels.surface],
        lambda labels: (labels.surface,),
    )
    yield _counted(
        "sbproxy_ai_stream_post_commit_failures",
        "Streams that broke after their head was sent.",
        (),
        [cell for cell in served if cell.labels.broke_after_start],
        lambda labels: (),
    )
