"""The model host's gauges, made at scrape time from its status rows and from the devices of this machine.

No label names a node, a port or a path (contracts section 40).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import get_args

from prometheus_client.core import GaugeMetricFamily

from sbproxy.devices.core.model import Device
from sbproxy.modelhost.core.status import ReplicaState, StatusRow
from sbproxy.observe.series import LabelBounds

_LOADING: frozenset[ReplicaState] = frozenset({"assigned", "preparing", "failed"})
"""States whose waiting callers wait for an engine, not for a permit of one (failed: for the scheduled restart)."""

STATES: tuple[ReplicaState, ...] = get_args(ReplicaState)
_PREFIX = "sbproxy_model_host"


def host_families(rows: list[StatusRow], bounds: LabelBounds) -> Iterator[GaugeMetricFamily]:
    """Sums over a deployment's replicas; ``deployment_state`` is 1 for each state that some replica is in."""
    active = GaugeMetricFamily(f"{_PREFIX}_active_requests", "Requests with a permit.", labels=("deployment",))
    queued = GaugeMetricFamily(f"{_PREFIX}_queued_requests", "Requests that wait for one.", labels=("deployment",))
    states = GaugeMetricFamily(
        f"{_PREFIX}_deployment_state", "1 for the state it is in.", labels=("deployment", "engine", "state")
    )
    grouped: dict[str, list[StatusRow]] = {}
    for row in rows:
        grouped.setdefault(bounds.bound(_PREFIX, "deployment", row.deployment), []).append(row)
    for deployment, replicas in grouped.items():
        active.add_metric((deployment,), sum(row.active_requests for row in replicas))
        queued.add_metric((deployment,), sum(row.queued_requests for row in replicas))
        for engine in sorted({row.engine or "" for row in replicas}):
            current = {row.state for row in replicas if (row.engine or "") == engine}
            for state in STATES:
                states.add_metric((deployment, engine, state), float(state in current))
    resident = sum(row.pid is not None for row in rows)
    yield from (active, queued, states, _load_queues(rows, bounds))
    yield GaugeMetricFamily(f"{_PREFIX}_resident_models", "Engine processes that hold a model.", value=resident)


def _load_queues(rows: list[StatusRow], bounds: LabelBounds) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{_PREFIX}_load_queue_depth", "Requests that wait for a cold start.", labels=("model",))
    waiting: Counter[str] = Counter()
    for row in rows:
        waiting[bounds.bound(_PREFIX, "model", row.model)] += row.queued_requests if row.state in _LOADING else 0
    for model, depth in waiting.items():
        family.add_metric((model,), depth)
    return family


def device_families(devices: Iterable[Device]) -> Iterator[GaugeMetricFamily]:
    """Accelerators only. An unknown utilisation stays absent: occupancy is not activity."""
    vram = GaugeMetricFamily(f"{_PREFIX}_gpu_vram_bytes", "Device memory.", labels=("device", "kind"))
    busy = GaugeMetricFamily(f"{_PREFIX}_gpu_utilization", "Compute activity, 0 to 1.", labels=("device",))
    full = GaugeMetricFamily(f"{_PREFIX}_gpu_memory_occupancy", "Memory in use, 0 to 1.", labels=("device",))
    for device in devices:
        if device.kind == "cpu":
            continue
        index = str(device.index)
        vram.add_metric((index, "total"), device.total_bytes)
        vram.add_metric((index, "free"), device.free_bytes)
        vram.add_metric((index, "used"), device.total_bytes - device.free_bytes)
        full.add_metric((index,), device.memory_occupancy)
        if device.compute_utilization is not None:
            busy.add_metric((index,), device.compute_utilization)
    yield from (vram, busy, full)
