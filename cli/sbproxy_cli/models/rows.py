"""What `models list` and `models show` say of a model on this machine: variant, fit and cache state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sbproxy.artifacts.core.model import Corrupt, Missing, Partial, Ready
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.errors.catalog import CatalogError, IncompleteCatalogV2, NoCompatibleVariant

if TYPE_CHECKING:
    from sbproxy.artifacts.core.foreign import Origin
    from sbproxy.artifacts.core.model import ArtifactState
    from sbproxy.catalog.core.model import CatalogModel, ResolvedArtifact
    from sbproxy.modelhost.core.gguf import ModelShape
    from sbproxy.modelhost.core.status import MemoryEstimate
    from sbproxy_cli.local import Local

Fit = Literal["fits", "too-large", "capability-refused", "unknown"]
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model of the catalog. ``artifact`` is None where no variant can run here; ``refusal`` then says why."""

    model: CatalogModel
    artifact: ResolvedArtifact | None
    refusal: str | None
    fit: Fit
    memory: MemoryEstimate | None
    status: str

    @property
    def estimated_gib(self) -> float | None:
        return None if self.memory is None else round(self.memory.total_bytes / GIB, 2)

    def fields(self) -> dict[str, Any]:
        """The row of ``models.list`` (contracts section 9)."""
        variant = self.artifact.variant if self.artifact else None
        return {
            "id": self.model.id,
            "params": self.model.params,
            "license": self.model.license,
            "family": self.model.family,
            "modality": self.model.modality,
            "quants": [each.quant for each in self.model.variants],
            "selected_variant": variant.id if variant else None,
            "format": variant.format if variant else None,
            "stability": variant.stability if variant else None,
            "exact_size_bytes": variant.total_size_bytes if variant else None,
            "engine": self.artifact.engine if self.artifact else None,
            "fit": self.fit,
            "estimated_vram_gib": self.estimated_gib,
            "status": self.status,
        }


def model_rows(local: Local) -> list[ModelRow]:
    """Every model of the catalog, in its order."""
    return [model_row(local, model) for model in local.foundation.catalog.models.values()]


def model_row(local: Local, model: CatalogModel) -> ModelRow:
    """One model: the variant that this machine would take, whether it fits, and what the cache holds of it."""
    try:
        artifact = local.resolve(model.id, None, "auto")
    except CatalogError as error:
        fit: Fit = "capability-refused" if isinstance(error, NoCompatibleVariant) else "unknown"
        status = "preview-incomplete" if isinstance(error, IncompleteCatalogV2) else "not-pulled"
        return ModelRow(model, None, str(error), fit, None, status)
    memory, fit = fit_of(local, artifact, DeploymentConfig(model=model.id))
    store = local.foundation.store
    state = store.state(artifact)
    origin = store.importable(artifact) if isinstance(state, Missing) else None
    return ModelRow(model, artifact, None, fit, memory, status_word(state, origin))


def status_word(state: ArtifactState, origin: Origin | None = None) -> str:
    """The STATUS column; ``origin``: the program whose cache seems to have what is missing here."""
    match state:
        case Ready():
            return "cached"
        case Partial():
            return "partial"
        case Corrupt():
            return "damaged"
        case Missing():
            return f"not-pulled, importable from {origin}" if origin else "not-pulled"


def fit_of(local: Local, artifact: ResolvedArtifact, deployment: DeploymentConfig) -> tuple[MemoryEstimate | None, Fit]:
    """What this deployment would be told at a start: the model host's own estimate, device choice and gate."""
    from sbproxy.modelhost.core.placement import kinds, options
    from sbproxy.modelhost.demand import demand_of, policy_of

    policy = policy_of(artifact, deployment, local.host)
    demand = demand_of(artifact, deployment, _shape(local, artifact))
    for kind in kinds(local.machine, policy):
        found = options(local.machine, kind, demand, policy)
        if found:
            fits = any(all(each.free_bytes >= option.wanted_bytes for each in option.devices) for option in found)
            return found[0].need, "fits" if fits else "too-large"
    return None, "capability-refused"


def _shape(local: Local, artifact: ResolvedArtifact) -> ModelShape | None:
    """The header of a cached GGUF file; without it the catalog sizes the KV cache."""
    from sbproxy.modelhost.core.gguf import GgufProblem
    from sbproxy.modelhost.demand import weight_file
    from sbproxy.modelhost.model_shape import read_shape

    state = local.foundation.store.state(artifact)
    if not isinstance(state, Ready) or artifact.variant.format != "gguf":
        return None
    try:
        return read_shape(state.snapshot / weight_file(artifact.variant))
    except (GgufProblem, OSError):
        return None
