"""The two durable records of the store, to and from JSON: ready and resume (contracts section 17).

Decoding is strict: a record that does not hold exactly its fields is no record.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sbproxy.artifacts.core.model import ArtifactRecord
from sbproxy.artifacts.core.source import public_source
from sbproxy.catalog.core.model import ArtifactDigest, CatalogFile, ResolvedArtifact
from sbproxy.catalog.core.paths import safe_relative

SCHEMA_VERSION = 1
MAX_RECORD_BYTES = 4 * 1024 * 1024
"""Far above what the record of a model in a thousand files needs."""


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """One file of a ready record."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReadyRecord:
    """``metadata/<digest>.json``: its presence is what makes an artifact ready. Times are Unix milliseconds."""

    schema_version: int
    artifact_digest: str
    catalog_revision: str
    logical_model: str
    variant_id: str
    format: str
    quant: str
    source: str
    revision: str
    files: tuple[RecordedFile, ...]
    total_size_bytes: int
    context_length: int | None
    license: str
    stability: str
    pickle_allowed: bool
    trust: str
    created_at_ms: int
    last_accessed_ms: int

    @property
    def subject(self) -> str:
        return f"{self.logical_model}:{self.variant_id}"

    def accessed(self, now_ms: int) -> ReadyRecord:
        return replace(self, last_accessed_ms=max(now_ms, self.last_accessed_ms))

    def summary(self) -> ArtifactRecord:
        return ArtifactRecord(
            digest=ArtifactDigest(self.artifact_digest),
            logical_model=self.logical_model,
            variant_id=self.variant_id,
            format=self.format,
            quant=self.quant,
            total_size_bytes=self.total_size_bytes,
            license=self.license,
            created_at_ms=self.created_at_ms,
            last_accessed_ms=self.last_accessed_ms,
            blobs=tuple((file.sha256, file.size_bytes) for file in self.files),
        )


@dataclass(frozen=True, slots=True)
class ResumeRecord:
    """``partials/<digest>/<sha>.json``: what the bytes beside it are the beginning of. Holds no credential."""

    schema_version: int
    url: str
    etag: str
    expected_sha256: str
    expected_size: int
    completed_bytes: int

    def continues(self, url: str, file: CatalogFile, partial_bytes: int) -> bool:
        """Whether ``partial_bytes`` on disk may be continued; any difference means they are thrown away."""
        same = self.url == url and self.expected_sha256 == file.sha256 and self.expected_size == file.size_bytes
        return same and self.completed_bytes <= partial_bytes <= self.expected_size


def ready_record(artifact: ResolvedArtifact, now_ms: int) -> ReadyRecord:
    variant = artifact.variant
    return ReadyRecord(
        schema_version=SCHEMA_VERSION,
        artifact_digest=artifact.digest,
        catalog_revision=artifact.catalog_revision,
        logical_model=artifact.model.id,
        variant_id=variant.id,
        format=variant.format,
        quant=variant.quant,
        source=public_source(variant.source),
        revision=variant.revision,
        files=tuple(RecordedFile(file.path, file.sha256, file.size_bytes) for file in variant.files),
        total_size_bytes=variant.total_size_bytes,
        context_length=artifact.model.context_length,
        license=artifact.model.license,
        stability=variant.stability,
        pickle_allowed=artifact.model.allow_pickle,
        trust="verified",
        created_at_ms=now_ms,
        last_accessed_ms=now_ms,
    )


def encode(record: ReadyRecord | ResumeRecord) -> bytes:
    return json.dumps(asdict(record), indent=1).encode() + b"\n"


def manifest(record: ReadyRecord) -> bytes:
    """``artifact.json`` of the snapshot: the identity and the files, without what changes later."""
    document = asdict(record)
    for volatile in ("last_accessed_ms", "created_at_ms", "trust"):
        del document[volatile]
    return json.dumps(document, indent=1).encode() + b"\n"


def decode_ready(data: bytes) -> ReadyRecord | None:
    """The record, or ``None`` for anything that is not exactly one."""
    document = _object(data)
    listed = document.get("files")
    if not isinstance(listed, list):
        return None
    try:
        files = tuple(RecordedFile(**entry) for entry in listed)
        record = ReadyRecord(**{**document, "files": files})
    except TypeError:
        return None
    sound = record.schema_version == SCHEMA_VERSION and all(map(_fits, files))
    return record if sound and _fits(record) and all(safe_relative(file.path) for file in files) else None


def decode_resume(data: bytes) -> ResumeRecord | None:
    """The record, or ``None`` for anything that is not exactly one."""
    try:
        record = ResumeRecord(**_object(data))
    except TypeError:
        return None
    return record if record.schema_version == SCHEMA_VERSION and _fits(record) else None


def plan(files: tuple[CatalogFile, ...]) -> bytes:
    """What a pull at work needs, for a prune that runs beside it."""
    return json.dumps({"files": [{"sha256": file.sha256} for file in files]}).encode()


def needed_blobs(data: bytes) -> set[str]:
    """The blobs that a record, a manifest or a plan names; nothing for a document that names none."""
    listed = _object(data).get("files")
    entries = listed if isinstance(listed, list) else []
    named = (entry.get("sha256") for entry in entries if isinstance(entry, dict))
    return {sha256 for sha256 in named if isinstance(sha256, str)}


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_RECORD_BYTES:
        return {}
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _fits(record: ReadyRecord | ResumeRecord | RecordedFile) -> bool:
    """Every ``str`` field is text and every ``int`` field a count; the annotations say which is which."""
    return all(_fits_kind(str(entry.type), getattr(record, entry.name)) for entry in fields(record))


def _fits_kind(kind: str, value: object) -> bool:
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    match kind:
        case "str":
            return isinstance(value, str) and _is_text(value)
        case "int":
            return count
        case "int | None":
            return value is None or count
        case "bool":
            return isinstance(value, bool)
    return True


def _is_text(value: str) -> bool:
    """Half of a surrogate pair passes through JSON, but no file name and no terminal takes it."""
    return not any("\ud800" <= char <= "\udfff" for char in value)
