"""Decides what a completion is worth and which lane it counts in (document 1, "Value delivered"; contracts section 31).

Amounts are whole millionths of a micro-dollar inside a lane (tokens times price a million tokens), so that no
completion is rounded; the report rounds each row once, half up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sbproxy.config.core.model_host import DeploymentConfig, ReferencePrice
from sbproxy.config.core.origin_rules import public_models
from sbproxy.config.core.origins import OriginConfig, ProviderConfig

OTHER = "__other__"
MAX_LANES = 1000
"""Of all models together, :data:`OTHER` included."""
PARTS = 1_000_000
"""Parts of a micro that amounts are kept in."""
MAX_MICROS = 2**53 - 1
"""The largest amount that is stored and shown; what is more stays that."""


@dataclass(frozen=True, slots=True)
class Price:
    """Micros for a million tokens."""

    prompt: int
    completion: int

    def parts(self, tokens_in: int, tokens_out: int) -> int:
        """What so many tokens cost, exactly, in :data:`PARTS` of a micro."""
        return tokens_in * self.prompt + tokens_out * self.completion


@dataclass(frozen=True, slots=True)
class PriceTable:
    """The prices of one configuration. ``asked`` is by origin and public model name, ``open`` by origin and provider
    for names that only a provider which takes any name answers."""

    asked: Mapping[tuple[str, str], Price] = field(default_factory=dict)
    open: Mapping[tuple[str, str], Price] = field(default_factory=dict)

    def find(self, origin: str, provider: str, model: str) -> Price | None:
        """One price for both lanes of a model, whoever answered; None for a model without a reference."""
        return self.asked.get((origin, model)) or self.open.get((origin, provider))


def compile_prices(origins: Mapping[str, OriginConfig], deployments: Mapping[str, DeploymentConfig]) -> PriceTable:
    """Of several references for one name that of a local model wins, then the provider that comes first."""
    asked: dict[tuple[str, str], Price] = {}
    unnamed: dict[tuple[str, str], Price] = {}
    for host, origin in origins.items():
        enabled = [each for each in origin.action.providers if each.enabled]
        for provider in sorted(enabled, key=lambda each: (not each.managed, each.priority is None, each.priority or 0)):
            reference = _reference(provider, deployments)
            if reference is None:
                continue
            price = Price(reference.prompt_micros_per_mtok, reference.completion_micros_per_mtok)
            for name in _names(provider):
                asked.setdefault((host, name), price)
            if not public_models(provider):
                unnamed.setdefault((host, provider.name), price)
    return PriceTable(asked, unnamed)


def _reference(provider: ProviderConfig, deployments: Mapping[str, DeploymentConfig]) -> ReferencePrice | None:
    deployment = deployments.get(provider.deployment) if provider.deployment is not None else None
    own = deployment.reference if deployment is not None else None
    return own or provider.reference


def _names(provider: ProviderConfig) -> set[str]:
    named = {*(public_models(provider) or provider.model_map)}
    return named if provider.default_model is None else {*named, provider.default_model}


@dataclass(slots=True)
class Lane:
    """What one model's completions add up to; ``saved`` and ``spent`` in :data:`PARTS` of a micro."""

    local: int = 0
    saved: int = 0
    cloud: int = 0
    spent: int = 0

    def add(self, other: Lane) -> None:
        self.local += other.local
        self.saved += other.saved
        self.cloud += other.cloud
        self.spent += other.spent


def lane_for(model: str, known: Collection[str]) -> str:
    """The lane of a model name: its own while there is room, else :data:`OTHER`; one that it has, it keeps."""
    if model in known or len(known) - (OTHER in known) < MAX_LANES - 1:
        return model
    return OTHER


def micros(parts: int) -> int:
    """Rounded half up, and bounded."""
    return min((parts + PARTS // 2) // PARTS, MAX_MICROS)


@dataclass(frozen=True, slots=True)
class ValueRow:
    """One model of the report."""

    model: str
    local_completions: int
    saved_micros: int
    cloud_completions: int
    cloud_spent_micros: int


@dataclass(frozen=True, slots=True)
class ValueReport:
    """All models by name. Totals are sums of the rows as they are shown."""

    rows: tuple[ValueRow, ...] = ()

    @classmethod
    def of(cls, lanes: Mapping[str, Lane]) -> ValueReport:
        return cls(
            tuple(
                ValueRow(model, lane.local, micros(lane.saved), lane.cloud, micros(lane.spent))
                for model, lane in sorted(lanes.items())
            )
        )

    @property
    def total_local_completions(self) -> int:
        return sum(row.local_completions for row in self.rows)

    @property
    def total_saved_micros(self) -> int:
        return sum(row.saved_micros for row in self.rows)

    @property
    def total_cloud_completions(self) -> int:
        return sum(row.cloud_completions for row in self.rows)

    @property
    def total_cloud_spent_micros(self) -> int:
        return sum(row.cloud_spent_micros for row in self.rows)
