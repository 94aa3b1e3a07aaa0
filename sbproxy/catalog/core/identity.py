"""The digest that names an exact artifact (contracts section 16). Engine and modality are no part of it."""

from __future__ import annotations

import hashlib

from sbproxy.catalog.core.canonical import CanonicalValue, canonical_json
from sbproxy.catalog.core.model import ArtifactDigest, CatalogFile, CatalogModel, Variant


def artifact_digest(catalog_revision: str, model: CatalogModel, variant: Variant) -> ArtifactDigest:
    """Hex SHA-256 of the canonical JSON of the identity. Equal bytes under a new catalog revision differ in it."""
    identity: CanonicalValue = {
        "catalog_revision": catalog_revision,
        "logical_model": model.id,
        "variant_id": variant.id,
        "format": variant.format,
        "quant": variant.quant,
        "source": variant.source,
        "revision": variant.revision,
        "files": [_file(file) for file in variant.files],
    }
    return ArtifactDigest(hashlib.sha256(canonical_json(identity)).hexdigest())


def _file(file: CatalogFile) -> CanonicalValue:
    """``member`` only says where the bytes are found; the bytes are named by their own hash."""
    return {"path": file.path, "sha256": file.sha256, "size_bytes": file.size_bytes}
