"""Builds resolved artifacts for tests out of the bytes that a source really serves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sbproxy.catalog.core.model import (
    ArtifactDigest,
    CatalogFile,
    CatalogModel,
    ModelId,
    Requirements,
    ResolvedArtifact,
    Variant,
    VariantId,
    WheelPin,
)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat, the same for the same seed."""
    return hashlib.shake_256(seed.to_bytes(8, "big")).digest(size)


def resolved(
    source: str,
    files: Mapping[str, bytes],
    *,
    model: str = "tiny",
    variant: str = "q4",
    members: Mapping[str, str] | None = None,
    wheels: tuple[WheelPin, ...] = (),
    revision: str = "0123456789abcdef0123456789abcdef01234567",
    artifact_format: Any = "gguf",
    allow_pickle: bool = False,
    hf_token: str | None = None,
) -> ResolvedArtifact:
    """An artifact whose catalog entry tells the truth about ``files`` (path in the snapshot → bytes)."""
    listed = tuple(
        CatalogFile(path, sha256(data), len(data), (members or {}).get(path)) for path, data in files.items()
    )
    chosen = Variant(
        id=VariantId(variant), format=artifact_format, quant="Q4", engines=("llama_cpp",), source=source,
        revision=revision, files=listed, requirements=Requirements(), stability="preview", certification="test",
        wheels=wheels,
    )  # fmt: skip
    entry = CatalogModel(
        id=ModelId(model), params="1M", license="apache-2.0", family="tiny", context_length=128, variants=(chosen,),
        allow_pickle=allow_pickle, hf_token=hf_token,
    )  # fmt: skip
    identity = json.dumps([model, variant, source, revision, [(f.path, f.sha256) for f in listed]]).encode()
    return ResolvedArtifact("test-1", entry, chosen, "llama_cpp", ArtifactDigest(sha256(identity)))
