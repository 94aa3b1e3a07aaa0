"""Decides what a proposed document changes in a baseline: origins, deployments, other settings, and how far it reaches.

Which engines restart is the model host's to say; it is handed in as the deployments that are ``disturbed``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sbproxy.config.core.changes import differences, restart_required
from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.origins import OriginConfig
from sbproxy.config.core.tree import KeyPath, render

_DEPLOYMENTS: KeyPath = ("proxy", "model_host", "deployments")


@dataclass(frozen=True, slots=True)
class Changed:
    """One entry that is in both documents; ``fields`` are key paths below it."""

    name: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MapChanges:
    """Names by what happens to them, each sorted."""

    added: tuple[str, ...]
    changed: tuple[Changed, ...]
    removed: tuple[str, ...]
    unchanged: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The semantic difference of two documents. ``settings`` are key paths outside of origins and deployments;
    ``restart`` those of them that no reload can apply, empty without a baseline, where nothing runs yet."""

    origins: MapChanges
    deployments: MapChanges
    settings: tuple[str, ...]
    restart: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.origins or self.deployments or self.settings)


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """How much of what the baseline serves is touched. ``scope`` is the widest thing that is: the process, an engine,
    an origin's routes, or nothing."""

    scope: str
    origins: tuple[str, ...]
    origin_count: int
    engines: tuple[str, ...]
    engine_count: int

    def text(self) -> str:
        return (
            f"max blast radius: {self.scope} ({len(self.origins)} of {self.origin_count} origins,"
            f" {len(self.engines)} of {self.engine_count} deployments disturbed)"
        )


def change_plan(before: SbConfig | None, after: SbConfig) -> ChangePlan:
    """Without ``before`` everything that is written is new."""
    baseline = before or SbConfig()
    settings = tuple(
        render(path) for path in differences(baseline, after) if path[0] != "origins" and path[:3] != _DEPLOYMENTS
    )
    return ChangePlan(
        origins=_compared(baseline.origins, after.origins),
        deployments=_compared(baseline.proxy.model_host.deployments, after.proxy.model_host.deployments),
        settings=settings,
        restart=restart_required(before, after) if before is not None else (),
    )


def blast_radius(before: SbConfig | None, plan: ChangePlan, disturbed: Collection[str]) -> BlastRadius:
    """``disturbed``: deployments of the baseline whose engine ends or is replaced. Their origins are touched too."""
    baseline = before or SbConfig()
    touched = {*(each.name for each in plan.origins.changed), *plan.origins.removed}
    touched |= {name for name, origin in baseline.origins.items() if set(_managed(origin)) & set(disturbed)}
    engines = tuple(sorted(set(disturbed) & baseline.proxy.model_host.deployments.keys()))
    scope = "process" if plan.restart else "engine" if engines else "origin" if touched else "none"
    return BlastRadius(
        scope, tuple(sorted(touched)), len(baseline.origins), engines, len(baseline.proxy.model_host.deployments)
    )


def _compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> MapChanges:
    both = sorted(old.keys() & new.keys())
    fields = {name: tuple(render(path) for path in differences(old[name], new[name])) for name in both}
    return MapChanges(
        added=tuple(sorted(new.keys() - old.keys())),
        changed=tuple(Changed(name, fields[name]) for name in both if fields[name]),
        removed=tuple(sorted(old.keys() - new.keys())),
        unchanged=tuple(name for name in both if not fields[name]),
    )


def _managed(origin: OriginConfig) -> Iterator[str]:
    for provider in origin.action.providers:
        if provider.managed and provider.deployment is not None:
            yield provider.deployment
