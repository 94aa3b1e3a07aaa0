"""The process's metrics under their public names (contracts section 40), one registry of its own.

Gauges are not kept: they are read from their owners at scrape time. Implements the model host's ``HostMetrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sbproxy.devices.core.model import Device
from sbproxy.modelhost.core.status import StatusRow
from sbproxy.observe.host_gauges import device_families, host_families
from sbproxy.observe.request_totals import RequestTotals
from sbproxy.observe.series import LabelBounds, Spread, Tally, counter_family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_CAPS = {"hostname": 200, "model": 200, "deployment": 256, "provider": 64, "route_class": 8, "surface": 32}


class Metrics(Collector):
    """Everything ``GET /metrics`` shows. The counters may be fed from any thread, ``requests`` from the event loop."""

    def __init__(self, *, hostname_cap: int = _CAPS["hostname"]) -> None:
        self._bounds = bounds = LabelBounds({**_CAPS, "hostname": hostname_cap})
        self.requests = RequestTotals(bounds)
        host = "sbproxy_model_host"
        self._rejections = Tally(
            f"{host}_admission_rejections", "Not admitted.", ("deployment", "priority", "reason"), bounds
        )
        self._launches = Tally(f"{host}_launches", "Engine starts.", ("engine", "model", "outcome"), bounds)
        self._ready = Spread(f"{host}_time_to_ready_seconds", "Launch to ready.", ("engine", "model"), bounds)
        self._ensure_failures = Tally(f"{host}_ensure_failures", "Preparations that failed.", ("reason",), bounds)
        self._artifact_errors = Tally(f"{host}_artifact_errors", "Failed pulls.", ("artifact_error_kind",), bounds)
        self._placements = Tally(
            f"{host}_placement_rejections", "Found no place.", ("deployment", "placement_reason"), bounds
        )
        self._evictions = Tally(f"{host}_evictions", "Engines stopped to make room.", ("reason",), bounds)
        self._fetched = Tally(f"{host}_weight_download_bytes", "Bytes fetched.", (), bounds)
        self._fetch_failures = Tally(f"{host}_weight_download_failures", "Downloads that failed.", (), bounds)
        self._fetch_seconds = Spread(f"{host}_weight_download_seconds", "Time of a download.", (), bounds)
        self._reloads = Tally("sbproxy_config_reload", "Configuration loads.", ("result",), bounds)
        self._rows: Callable[[], Iterable[StatusRow]] | None = None
        self._devices: Callable[[], Iterable[Device]] | None = None
        self._connections: Callable[[], int] | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def watch(
        self,
        *,
        host_rows: Callable[[], Iterable[StatusRow]] | None = None,
        devices: Callable[[], Iterable[Device]] | None = None,
        active_connections: Callable[[], int] | None = None,
    ) -> None:
        """Name the owners of the gauges, once they exist. They are called at each scrape and must be quick."""
        self._rows = host_rows or self._rows
        self._devices = devices or self._devices
        self._connections = active_connections or self._connections

    def text(self) -> bytes:
        """The scrape, in the text format of ``CONTENT_TYPE``."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        tallies = (
            self._rejections,
            self._launches,
            self._ensure_failures,
            self._artifact_errors,
            self._placements,
            self._evictions,
            self._fetched,
            self._fetch_failures,
            self._reloads,
        )
        yield from (tally.family() for tally in tallies)
        yield from (spread.family() for spread in (self._ready, self._fetch_seconds))
        yield from self.requests.families()
        if self._rows is not None:
            yield from host_families(list(self._rows()), self._bounds)
        if self._devices is not None:
            yield from device_families(self._devices())
        if self._connections is not None:
            yield GaugeMetricFamily("sbproxy_active_connections", "Client connections.", value=self._connections())
        yield counter_family(
            "sbproxy_label_cardinality_overflow",
            "Label values folded into __other__.",
            ("metric", "label"),
            self._bounds.overflows,
        )

    def config_reloaded(self, result: str) -> None:
        self._reloads.add(result)

    def admission_rejected(self, deployment: str, priority: str, reason: str) -> None:
        self._rejections.add(deployment, priority, reason)

    def launched(self, engine: str, model: str, outcome: str, seconds_to_ready: float | None) -> None:
        self._launches.add(engine, model, outcome)
        if seconds_to_ready is not None:
            self._ready.observe(engine, model, amount=seconds_to_ready)

    def ensure_failed(self, reason: str) -> None:
        self._ensure_failures.add(reason)

    def artifact_error(self, kind: str) -> None:
        self._artifact_errors.add(kind)

    def placement_rejected(self, deployment: str, reason: str) -> None:
        self._placements.add(deployment, reason)

    def evicted(self, reason: str) -> None:
        self._evictions.add(reason)

    def downloaded(self, fetched_bytes: int, seconds: float, *, failed: bool) -> None:
        self._fetched.add(amount=fetched_bytes)
        self._fetch_seconds.observe(amount=seconds)
        if failed:
            self._fetch_failures.add()
