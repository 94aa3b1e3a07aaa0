"""Stand-ins in the catalog for the raw references of ``serve:`` blocks, so that a resolution finds them like any model.

Nothing says what their bytes are: every stand-in is ``unverified`` and keeps out of the artifact store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from sbproxy.catalog.core.model import Catalog, CatalogFile, CatalogModel, ModelId, Requirements, Variant, VariantId
from sbproxy.config.core.serve import RawReference, ServeModelConfig
from sbproxy.config.core.serve_deployment import gguf, raw_model_id
from sbproxy.config.core.serve_rules import SIZE

CONTEXT_LENGTH: Final = 4096
"""Tokens of a raw reference whose entry says no ``max_context``."""

ENGINE_QUANT: Final = "Q4_K_M"
"""What llama.cpp takes from a repository when nobody names a quantization."""

UNVERIFIED: Final = "unverified: a raw reference without digests"

_SAFETENSORS_ENGINES: Final = ("vllm", "sglang")
_NO_SHA256: Final = "0" * 64
_QUANT: Final = re.compile(r"(?<![A-Za-z0-9])(I?Q[1-8](?:_[A-Z0-9]+)*|F16|BF16|F32)(?![A-Za-z0-9])", re.IGNORECASE)
_BYTES_A_WEIGHT: Final = 0.56


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is seen of a file before anybody reads it; another size or time makes another artifact."""

    size_bytes: int
    modified_ns: int


def raw_model(raw: RawReference, entry: ServeModelConfig, found: FileFacts | None = None) -> CatalogModel:
    """The stand-in of one entry. ``found`` is for a file; without it the file is not there now, and may come."""
    variant = _file(raw, found) if raw.kind == "file" else _repository(raw, entry)
    return CatalogModel(
        id=ModelId(raw_model_id(raw, entry)),
        params=_params(raw, entry, found),
        license="unknown",
        family="unknown",
        context_length=entry.max_context or CONTEXT_LENGTH,
        variants=(variant,),
        modality=entry.modality or "chat",
    )


def with_models(catalog: Catalog, models: Iterable[CatalogModel]) -> Catalog:
    """``catalog`` with more models, under the same revision: its own models are what they were."""
    return replace(catalog, models={**catalog.models, **{model.id: model for model in models}})


def _file(raw: RawReference, found: FileFacts | None) -> Variant:
    path = PurePosixPath(raw.location)
    return Variant(
        id=VariantId("file"),
        format="gguf",
        quant=_quant(path.name) or "unknown",
        engines=("llama_cpp",),
        source=f"file:{raw.location}",
        revision=f"{found.size_bytes}-{found.modified_ns}" if found else "missing",
        files=(CatalogFile(path.name, _NO_SHA256, found.size_bytes if found else 1),),
        requirements=Requirements(),
        stability="preview",
        certification=UNVERIFIED,
        in_place=True,
    )


def _repository(raw: RawReference, entry: ServeModelConfig) -> Variant:
    is_gguf = gguf(raw, entry)
    quant = raw.quant or _quant(entry.gguf_file or "") or (ENGINE_QUANT if is_gguf else "unknown")
    name = raw.location if raw.quant is None else f"{raw.location}:{raw.quant}"
    return Variant(
        id=VariantId("repository"),
        format="gguf" if is_gguf else "safetensors",
        quant=quant,
        engines=("llama_cpp",) if is_gguf else _SAFETENSORS_ENGINES,
        source=f"hf:{raw.location}",
        revision="unpinned",
        # Only the engine knows its files; this one names none of them, so that sizes come from the model's name.
        files=(CatalogFile("repository", _NO_SHA256, 1),),
        requirements=Requirements(),
        stability="preview",
        certification=UNVERIFIED,
        repository=name,
        repository_file=entry.gguf_file,
    )


def _params(raw: RawReference, entry: ServeModelConfig, found: FileFacts | None) -> str:
    """As the name tells, else as the size of the file lets guess; the memory of a file counts by its size anyway."""
    match = SIZE.search(f"{raw.location}-{entry.gguf_file or ''}")
    if match is not None:
        return match[1].upper().replace("X", "x")
    return f"{max(1, int((found.size_bytes if found else 0) / _BYTES_A_WEIGHT) // 1_000_000)}M"


def _quant(name: str) -> str | None:
    found = _QUANT.findall(name)
    return str(found[-1]).upper() if found else None
