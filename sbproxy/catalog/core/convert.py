"""From a catalog document as written to the values that the program works with. Decides the order of variants."""

from __future__ import annotations

from sbproxy.catalog.core.model import (
    Attention,
    Catalog,
    CatalogFile,
    CatalogModel,
    ModelId,
    Requirements,
    Variant,
    VariantId,
    WheelPin,
)
from sbproxy.catalog.core.written import (
    WrittenAttention,
    WrittenCatalog,
    WrittenModel,
    WrittenRequirements,
    WrittenVariant,
)


def to_catalog(written: WrittenCatalog, origin: str) -> Catalog:
    models = {ModelId(model_id): _model(ModelId(model_id), model) for model_id, model in written.models.items()}
    return Catalog(written.catalog_revision, models, origin)


def _model(model_id: ModelId, written: WrittenModel) -> CatalogModel:
    # Preference order is the document's, but code that a file may run comes after data that it cannot.
    ordered = sorted(written.variants, key=lambda variant: variant.format == "pickle")
    return CatalogModel(
        id=model_id,
        params=written.params,
        license=written.license,
        family=written.family,
        context_length=written.context_length,
        variants=tuple(map(_variant, ordered)),
        allow_pickle=written.allow_pickle,
        modality=written.modality,
        pull=written.pull,
        hf_token=written.hf_token,
        attention=_attention(written.attention),
    )


def _attention(written: WrittenAttention | None) -> Attention | None:
    return None if written is None else Attention(written.layers, written.kv_heads, written.head_dim)


def _variant(written: WrittenVariant) -> Variant:
    return Variant(
        id=VariantId(written.id),
        format=written.format,
        quant=written.quant,
        engines=tuple(written.engines),
        source=written.source,
        revision=written.revision,
        files=tuple(CatalogFile(file.path, file.sha256, file.size_bytes, file.member) for file in written.files),
        requirements=_requirements(written.requirements),
        stability=written.stability,
        certification=written.certification,
        wheels=tuple(WheelPin(wheel.distribution, wheel.version, wheel.sha256) for wheel in written.wheels),
    )


def _requirements(written: WrittenRequirements) -> Requirements:
    capability = written.min_compute_capability
    return Requirements(
        accelerators=tuple(written.accelerators),
        min_memory_bytes=written.min_memory_bytes,
        min_compute_capability=None if capability is None else (capability.major, capability.minor),
    )
