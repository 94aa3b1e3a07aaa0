"""Counters and histograms with bounded labels, and their shape for ``prometheus_client``.

Plain dictionaries instead of that library's children: an increment is one look-up and one addition.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from sbproxy.observe.core.scrub import scrub

OTHER = "__other__"
_VALUE_LIMIT = 128

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds: from a refused request to a long generation."""


class LabelBounds:
    """How many values a label may take over the life of the process; what comes later is ``__other__``.

    Whoever can choose a host name or a model name must not be able to grow the scrape.
    """

    def __init__(self, caps: Mapping[str, int], default_cap: int = 100) -> None:
        self._caps = caps
        self._default_cap = default_cap
        self._seen: dict[str, set[str]] = {}
        self.overflows: dict[tuple[str, ...], float] = {}

    def bound(self, metric: str, label: str, value: str) -> str:
        seen = self._seen.setdefault(label, set())
        value = scrub(value, _VALUE_LIMIT)
        if value in seen:
            return value
        if len(seen) < self._caps.get(label, self._default_cap):
            seen.add(value)
            return value
        key = (metric, label)
        self.overflows[key] = self.overflows.get(key, 0) + 1
        return OTHER

    def bound_all(self, metric: str, labels: Sequence[str], values: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.bound(metric, label, value) for label, value in zip(labels, values, strict=True))


class Tally:
    """A counter. ``name`` without ``_total``. Safe from any thread."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: LabelBounds) -> None:
        self.name, self.text, self.labels = name, text, tuple(labels)
        self._bounds = bounds
        self._counts: dict[tuple[str, ...], float] = {}
        self._lock = threading.Lock()

    def add(self, *values: str, amount: float = 1) -> None:
        with self._lock:
            if values not in self._counts:
                values = self._bounds.bound_all(self.name, self.labels, values)
            self._counts[values] = self._counts.get(values, 0) + amount

    def family(self) -> CounterMetricFamily:
        return counter_family(self.name, self.text, self.labels, self._counts)


class Spread:
    """A histogram over ``LATENCY_BUCKETS``. Safe from any thread."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: LabelBounds) -> None:
        self.name, self.text, self.labels = name, text, tuple(labels)
        self._bounds = bounds
        self._cells: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}
        self._lock = threading.Lock()

    def observe(self, *values: str, amount: float) -> None:
        with self._lock:
            if values not in self._cells:
                values = self._bounds.bound_all(self.name, self.labels, values)
            buckets, total = self._cells.setdefault(values, (empty_buckets(), [0.0]))
            buckets[bisect_left(LATENCY_BUCKETS, amount)] += 1
            total[0] += amount

    def family(self) -> HistogramMetricFamily:
        cells = ((values, buckets, total[0]) for values, (buckets, total) in list(self._cells.items()))
        return histogram_family(self.name, self.text, self.labels, cells)


def empty_buckets() -> list[int]:
    """One count per bucket and one for everything above the last."""
    return [0] * (len(LATENCY_BUCKETS) + 1)


def counter_family(
    name: str, text: str, labels: Sequence[str], counts: Mapping[tuple[str, ...], float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in list(counts.items()):
        family.add_metric(values, count)
    return family


def histogram_family(
    name: str, text: str, labels: Sequence[str], cells: Iterable[tuple[tuple[str, ...], Sequence[int], float]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    edges = [*map(str, LATENCY_BUCKETS), "+Inf"]
    for values, buckets, total in cells:
        running = 0
        cumulative: list[tuple[str, float]] = []
        for edge, count in zip(edges, buckets, strict=True):
            running += count
            cumulative.append((edge, running))
        family.add_metric(values, cumulative, sum_value=total)
    return family
