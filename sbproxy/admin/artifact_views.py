"""How the artifact cache and the memory of this machine look on the wire: pure translations."""

from __future__ import annotations

from collections.abc import Sequence

from sbproxy.admin.ports import Inventory
from sbproxy.api.artifacts import (
    ClusterArtifacts,
    ClusterVram,
    GcAnswer,
    ModelArtifacts,
    NodeArtifacts,
    NodeVram,
    VramDevice,
    VramNode,
    VramTotals,
)
from sbproxy.artifacts.core.model import ArtifactRecord, GcReport, distinct_bytes
from sbproxy.devices.core.model import Device

LOCAL_NODE = "local"
"""The one node of a daemon that is in no cluster (contracts section 22)."""


def gc_report(report: GcReport) -> GcAnswer:
    return GcAnswer(
        before_bytes=report.before_bytes,
        after_bytes=report.after_bytes,
        reclaimed_bytes=report.reclaimed_bytes,
        deleted_artifacts=list(report.deleted_artifacts),
        skipped_artifacts=dict(report.skipped_artifacts),
        budget_unsatisfied_bytes=report.budget_unsatisfied_bytes,
    )


def cluster_artifacts(inventory: Inventory) -> ClusterArtifacts:
    """The same figures as ``GET /admin/model-host/files``, by node and by model."""
    by_model: dict[str, list[ArtifactRecord]] = {}
    for record in inventory.artifacts:
        by_model.setdefault(record.logical_model, []).append(record)
    node = NodeArtifacts(
        node_id=LOCAL_NODE,
        total_bytes=distinct_bytes(inventory.artifacts),
        artifact_count=len(inventory.artifacts),
        snapshot_age_ms=0,
    )
    models = [
        ModelArtifacts(logical_model=name, total_bytes=distinct_bytes(records), node_count=1)
        for name, records in sorted(by_model.items())
    ]
    return ClusterArtifacts(nodes=[node], models=models, partial=False)


def cluster_vram(devices: Sequence[Device], now: float) -> ClusterVram:
    """``now``: Unix seconds. Memory of the CPU is no VRAM; a machine without a GPU reports none."""
    cards = [device for device in devices if device.kind != "cpu"]
    total, free = sum(card.total_bytes for card in cards), sum(card.free_bytes for card in cards)
    vram = NodeVram(
        budget_bytes=total, used_bytes=total - free, free_bytes=free, devices=[_card(card) for card in cards]
    )
    nodes = [VramNode(node_id=LOCAL_NODE, vram=vram)] if cards else []
    moment = int(now * 1000)
    return ClusterVram(
        generated_at_unix_ms=moment,
        directory_collected_at_unix_ms=moment,
        cluster=VramTotals(
            total_bytes=total,
            used_bytes=total - free,
            free_bytes=free,
            device_count=len(cards),
            node_count=len(nodes),
        ),
        nodes=nodes,
    )


def _card(card: Device) -> VramDevice:
    return VramDevice(
        index=card.index,
        name=card.name,
        total_bytes=card.total_bytes,
        free_bytes=card.free_bytes,
        compute_utilization=card.compute_utilization,
        memory_occupancy=card.memory_occupancy,
    )
