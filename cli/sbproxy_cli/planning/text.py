"""A plan for people: what is added, changed and removed, what restarts, and how far it reaches."""

from __future__ import annotations

from sbproxy.config.core.plan import MapChanges
from sbproxy_cli.planning.engines import Effect, EnginePlan
from sbproxy_cli.planning.proposal import Proposal
from sbproxy_cli.sizes import human_size

_WORDS = {"start": "starts", "restart": "restarts", "stay": "stays", "stop": "stops"}


def plan_lines(proposal: Proposal) -> list[str]:
    """Blocks at the left margin, their entries indented; an empty block is left out."""
    against = str(proposal.baseline.path) if proposal.baseline else "an empty baseline"
    lines = [f"plan: {proposal.proposed.path} against {against}"]
    if not proposal.changed:
        lines.append("no change")
    lines += _block("origins", _map(proposal.changes.origins))
    lines += _block("deployments", _map(proposal.changes.deployments))
    lines += _block("settings", [f"~ {path}" for path in proposal.changes.settings])
    if proposal.engines.effects:
        lines += _block("engines", [_effect(each) for each in proposal.engines.effects])
        lines.append(_memory(proposal.engines))
    lines.append(proposal.radius.text())
    return [*lines, *_block("findings", [each.text() for each in proposal.findings])]


def _block(title: str, entries: list[str]) -> list[str]:
    return [title, *[f"  {entry}" for entry in entries]] if entries else []


def _map(changes: MapChanges) -> list[str]:
    changed = [f"~ {each.name} ({', '.join(each.fields)})" for each in changes.changed]
    return [*[f"+ {name}" for name in changes.added], *changed, *[f"- {name}" for name in changes.removed]]


def _effect(effect: Effect) -> str:
    how = f", {effect.rollout}" if effect.rollout else ""
    if effect.action in ("start", "restart") and not effect.warm:
        how += ", with its next request" if effect.action == "start" else ", at once if it is loaded"
    return f"{effect.deployment} {_WORDS[effect.action]} ({effect.model}{how})"


def _memory(engines: EnginePlan) -> str:
    memory = engines.memory
    least = "at least " if memory.incomplete else ""
    return (
        f"memory with every deployment loaded: {human_size(memory.before_bytes)} before,"
        f" {least}{human_size(memory.after_bytes)} after, {human_size(memory.peak_bytes)} at the highest in between"
    )
