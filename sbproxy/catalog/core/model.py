"""Values of catalog v2: models, variants, files, and what a resolution yields (contracts section 16).

Loading and strict validation live in ``sbproxy.catalog.document``; the decision in ``sbproxy.catalog.core.resolve``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NewType

ModelId = NewType("ModelId", str)
VariantId = NewType("VariantId", str)
ArtifactDigest = NewType("ArtifactDigest", str)
"""64 lower-case hex characters: SHA-256 of the canonical artifact identity."""

Accelerator = Literal["cpu", "metal", "cuda"]
Format = Literal["safetensors", "gguf", "pickle"]
Stability = Literal["stable", "preview", "config_only", "unsupported"]
Modality = Literal["chat", "embedding", "rerank", "speech_to_text", "text_to_speech", "image"]
PullPolicy = Literal["on_boot", "on_demand", "manual"]


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """One exact file. ``path`` is relative to the snapshot; ``member`` names it inside a wheel (``pypi:``)."""

    path: str
    sha256: str
    size_bytes: int
    member: str | None = None


@dataclass(frozen=True, slots=True)
class WheelPin:
    """One wheel of a ``pypi:`` source: distribution, exact version, sha256 of the wheel file."""

    distribution: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a worker must offer for a variant; ``min_compute_capability`` is (major, minor)."""

    accelerators: tuple[Accelerator, ...] = ("cpu", "metal", "cuda")
    min_memory_bytes: int | None = None
    min_compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """One exact artifact of a model. ``source`` is ``hf:Org/Repo``, ``https://…``, ``file:/abs`` or ``pypi:name``."""

    id: VariantId
    format: Format
    quant: str
    engines: tuple[str, ...]
    source: str
    revision: str
    files: tuple[CatalogFile, ...]
    requirements: Requirements
    stability: Stability
    certification: str
    wheels: tuple[WheelPin, ...] = ()
    repository: str | None = None
    """Of a raw reference: ``Org/Repo`` or ``Org/Repo:QUANT``, which the engine fetches itself."""
    repository_file: str | None = None
    """The one file of ``repository`` that was asked for."""
    in_place: bool = False
    """Of a raw reference: the ``file:`` source is used where it lies."""

    @property
    def unverified(self) -> bool:
        """Whether no digest says what the bytes are; such an artifact never enters the store."""
        return self.repository is not None or self.in_place

    @property
    def total_size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Attention:
    """What one token costs in the KV cache: ``layers`` times ``kv_heads`` times ``head_dim``, for keys and for values.

    Of models whose layers differ these are the largest figures, as the estimate takes them from a file's header.
    """

    layers: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One logical model; ``variants`` are in preference order.

    ``attention`` sizes the KV cache until the file is here; then the file's own header is believed.
    """

    id: ModelId
    params: str
    license: str
    family: str
    context_length: int | None
    variants: tuple[Variant, ...]
    allow_pickle: bool = False
    modality: Modality = "chat"
    pull: PullPolicy = "on_demand"
    hf_token: str | None = field(default=None, repr=False)
    attention: Attention | None = None


@dataclass(frozen=True, slots=True)
class Catalog:
    """A whole validated document. ``origin`` says where it came from: ``builtin`` or a path."""

    catalog_revision: str
    models: Mapping[ModelId, CatalogModel]
    origin: str = "builtin"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What the resolving machine offers. ``engines`` are those that are available or acquirable."""

    accelerators: frozenset[Accelerator]
    engines: frozenset[str]
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ResolvedArtifact:
    """The answer of a resolution: exact files under one digest, and the engine that will run them."""

    catalog_revision: str
    model: CatalogModel
    variant: Variant
    engine: str
    digest: ArtifactDigest

    @property
    def subject(self) -> str:
        """``model:variant``, the name used by jobs and progress lines."""
        return f"{self.model.id}:{self.variant.id}"
