"""Decides which exact artifact a model's name means on this machine, and with which engine (contracts section 16)."""

from __future__ import annotations

from sbproxy.catalog.core.identity import artifact_digest
from sbproxy.catalog.core.model import Catalog, CatalogModel, ModelId, ResolvedArtifact, Variant, WorkerFacts
from sbproxy.errors.catalog import (
    IncompleteCatalogV2,
    NoCompatibleVariant,
    UnknownModel,
    UnknownVariant,
    VariantPinRequired,
)
from sbproxy.near import near_names

NEVER_AUTOMATIC = frozenset({"sglang", "mistralrs"})
"""Engines that only a deployment's own choice selects (contracts section 14)."""

_NEVER_CHOSEN = frozenset({"config_only", "unsupported"})


def resolve(
    catalog: Catalog,
    model: str,
    variant: str | None,
    worker: WorkerFacts,
    engine: str = "auto",
    *,
    pin_required: bool = False,
) -> ResolvedArtifact:
    """The pinned variant, or else the first one in the catalog's order that ``worker`` can run.

    ``engine`` other than auto must be among the variant's engines and the worker's. Raises UnknownModel,
    IncompleteCatalogV2, VariantPinRequired (``pin_required``, several variants), UnknownVariant, NoCompatibleVariant.
    """
    entry = find_model(catalog, model)
    candidates = _candidates(entry, variant, pin_required=pin_required)
    reasons: list[str] = []
    for candidate in candidates:
        chosen = _engine(candidate, engine, worker)
        reason = chosen[1] or _refusal(candidate, worker)
        if reason is None and chosen[0] is not None:
            digest = artifact_digest(catalog.catalog_revision, entry, candidate)
            return ResolvedArtifact(catalog.catalog_revision, entry, candidate, chosen[0], digest)
        reasons.append(f"{candidate.id}: {reason}")
    raise NoCompatibleVariant(entry.id, tuple(reasons))


def find_model(catalog: Catalog, model: str) -> CatalogModel:
    """Raises UnknownModel with the nearest ids."""
    entry = catalog.models.get(ModelId(model))
    if entry is None:
        raise UnknownModel(model, near_names(model, catalog.models))
    return entry


def _candidates(entry: CatalogModel, variant: str | None, *, pin_required: bool) -> tuple[Variant, ...]:
    if not entry.variants:
        raise IncompleteCatalogV2(entry.id, "variants with exact files")
    if entry.context_length is None:
        raise IncompleteCatalogV2(entry.id, "context_length")
    available = tuple(str(each.id) for each in entry.variants)
    if variant is None:
        if pin_required and len(available) > 1:
            raise VariantPinRequired(entry.id, available)
        return entry.variants
    pinned = tuple(each for each in entry.variants if each.id == variant)
    if not pinned:
        raise UnknownVariant(entry.id, variant, available)
    return pinned


def _engine(variant: Variant, wanted: str, worker: WorkerFacts) -> tuple[str | None, str | None]:
    """(engine, None) or (None, why not)."""
    if wanted != "auto":
        if wanted not in variant.engines:
            return None, f"runs with {', '.join(variant.engines)}, not with {wanted}"
        return (wanted, None) if wanted in worker.engines else (None, f"engine {wanted} is not available here")
    automatic = [name for name in variant.engines if name not in NEVER_AUTOMATIC]
    if not automatic:
        return None, f"its engine must be asked for by name: {', '.join(variant.engines)}"
    usable = next((name for name in automatic if name in worker.engines), None)
    return (usable, None) if usable else (None, f"no engine for it is available here ({', '.join(automatic)})")


def _refusal(variant: Variant, worker: WorkerFacts) -> str | None:
    needs = variant.requirements
    if variant.stability in _NEVER_CHOSEN:
        return f"its stability is {variant.stability}"
    if not set(needs.accelerators) & worker.accelerators:
        have = ", ".join(sorted(worker.accelerators)) or "none"
        return f"needs {' or '.join(needs.accelerators)}, this machine has {have}"
    if _capability_missing(variant, worker):
        major, minor = needs.min_compute_capability or (0, 0)
        return f"needs CUDA compute capability {major}.{minor}"
    needed, there = needs.min_memory_bytes, worker.memory_bytes
    if needed is not None and there is not None and there < needed:
        return f"needs {needed >> 20} MiB of memory, {there >> 20} MiB are there"
    return None


def _capability_missing(variant: Variant, worker: WorkerFacts) -> bool:
    """A capability gates the CUDA path only: a variant that also runs on a CPU here is not held up by an old card."""
    needed = variant.requirements.min_compute_capability
    if needed is None or {"cpu", "metal"} & set(variant.requirements.accelerators) & worker.accelerators:
        return False
    return worker.compute_capability is None or worker.compute_capability < needed
