"""What a proposed document does to engines and memory, asked of the same functions that the model host runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.errors.catalog import CatalogError
from sbproxy.modelhost.core.desired import Desired, foundation_change, plan
from sbproxy_cli.local import Local
from sbproxy_cli.models.rows import fit_of
from sbproxy_cli.sizes import human_size

Action = Literal["start", "restart", "stay", "stop"]


@dataclass(frozen=True, slots=True)
class Effect:
    """One deployment. ``start`` and ``restart`` happen at once when it is warm or serving, else with the next request;
    ``bytes_before`` and ``bytes_after`` are the estimates over all its replicas, None where unknown."""

    deployment: str
    action: Action
    rollout: str | None
    warm: bool
    model: str
    bytes_before: int | None
    bytes_after: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Estimates in bytes with every deployment loaded. ``peak_bytes`` counts a rolling replacement twice, as long as
    both generations are there; ``incomplete`` when an estimate is missing, so that each sum is a lower bound."""

    before_bytes: int
    after_bytes: int
    peak_bytes: int
    incomplete: bool


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """``doubts`` are (key path, reason): what this machine could not take on, and what the daemon would refuse."""

    effects: tuple[Effect, ...]
    memory: Memory
    doubts: tuple[tuple[str, str], ...]

    @property
    def disturbed(self) -> frozenset[str]:
        return frozenset(each.deployment for each in self.effects if each.action in ("restart", "stop"))


@dataclass(frozen=True, slots=True)
class _Side:
    """One document's deployments as this machine resolves them; unresolvable ones are in ``doubts`` alone."""

    local: Local | None
    desired: dict[str, Desired]
    bytes: dict[str, int | None]
    doubts: tuple[tuple[str, str], ...]

    def field(self, name: str, field: str) -> str | bool | None:
        if self.local is None or name not in self.local.host.deployments:
            return None
        value: str | bool = getattr(self.local.host.deployments[name], field)
        return value


def engine_plan(before: Local | None, after: Local) -> EnginePlan:
    """Blocking: probes the machine and looks into the cache; fetches and starts nothing."""
    old, new = _side(before), _side(after)
    found = plan(old.desired, new.desired)
    words: list[tuple[str, Action]] = [(name, "start") for name in found.added]
    words += [(name, "restart") for name in found.changed]
    words += [(name, "stop") for name in found.removed]
    words += [(name, "stay") for name in found.preserved]
    effects = tuple(_effect(name, action, old, new) for name, action in sorted(words))
    return EnginePlan(effects, _memory(effects), (*new.doubts, *_foundation(before, after)))


def _side(local: Local | None) -> _Side:
    desired: dict[str, Desired] = {}
    sizes: dict[str, int | None] = {}
    doubts: list[tuple[str, str]] = []
    for name, config in local.host.deployments.items() if local is not None else ():
        assert local is not None  # noqa: S101 - for the type checker; without it there is no deployment
        try:
            artifact = local.resolve(config.model, config.variant, config.engine)
        except CatalogError as error:
            doubts.append((f"proxy.model_host.deployments.{name}", f"not on this machine: {error}"))
            continue
        desired[name] = Desired(config, artifact.digest, artifact.engine)
        sizes[name], doubt = _size(local, name, artifact)
        if doubt is not None:
            doubts.append((f"proxy.model_host.deployments.{name}", doubt))
    return _Side(local, desired, sizes, tuple(doubts))


def _size(local: Local, name: str, artifact: ResolvedArtifact) -> tuple[int | None, str | None]:
    config = local.host.deployments[name]
    estimate, fit = fit_of(local, artifact, config)
    if estimate is None:
        return None, "no device of this machine may run it"
    total = estimate.total_bytes * max(1, len(estimate.device_indexes)) * config.replicas
    doubt = f"{human_size(total)} do not fit what is free on this machine now" if fit == "too-large" else None
    return total, doubt


def _effect(name: str, action: Action, old: _Side, new: _Side) -> Effect:
    side = old if action == "stop" else new
    rollout = side.field(name, "rollout") if action == "restart" else None
    return Effect(
        deployment=name,
        action=action,
        rollout=str(rollout) if rollout is not None else None,
        warm=bool(side.field(name, "warm")),
        model=str(side.field(name, "model")),
        bytes_before=old.bytes.get(name),
        bytes_after=new.bytes.get(name),
    )


def _memory(effects: tuple[Effect, ...]) -> Memory:
    before = sum(each.bytes_before or 0 for each in effects)
    after = sum(each.bytes_after or 0 for each in effects)
    twice = sum(each.bytes_before or 0 for each in effects if each.action == "restart" and each.rollout == "rolling")
    unknown = any(each.bytes_after is None and each.action != "stop" for each in effects)
    return Memory(before, after, max(before, after + twice), unknown)


def _foundation(before: Local | None, after: Local) -> list[tuple[str, str]]:
    if before is None:
        return []
    changed = foundation_change((before.foundation.catalog, before.host), (after.foundation.catalog, after.host))
    if changed is None:
        return []
    reason = "the daemon refuses to change it while an engine is loaded; stop the deployments first, or restart"
    return [(f"proxy.model_host.{changed}", reason)]
