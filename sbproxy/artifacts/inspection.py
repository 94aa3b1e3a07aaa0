"""Looks into files that are what the catalog says, byte by byte, but may still not be published: pickles that do more
than rebuild tensors, and an index that sends tensors to files the variant lacks."""

from __future__ import annotations

from pathlib import Path

from sbproxy.artifacts.core.pickle_scan import UnsafePickle
from sbproxy.artifacts.core.policy import pickle_files
from sbproxy.artifacts.core.shards import INDEX_SUFFIX, MAX_INDEX_BYTES, missing_of_index
from sbproxy.artifacts.disk import content
from sbproxy.artifacts.pickle_files import scan_file
from sbproxy.catalog.core.model import CatalogFile, ResolvedArtifact
from sbproxy.errors.artifacts import PickleUnsafe, UnsafeArtifactPath


def inspect_file(artifact: ResolvedArtifact, file: CatalogFile, place: Path) -> None:
    """``place`` holds the verified bytes of ``file``. Raises PickleUnsafe or UnsafeArtifactPath."""
    if file in pickle_files(artifact):
        try:
            scan_file(place)
        except UnsafePickle as refused:
            raise PickleUnsafe(artifact.subject, file.path, str(refused), refused.named) from None
    if file.path.endswith(INDEX_SUFFIX):
        _check_index(artifact, file, place)


def _check_index(artifact: ResolvedArtifact, file: CatalogFile, place: Path) -> None:
    try:
        paths = [each.path for each in artifact.variant.files]
        missing = missing_of_index(file.path, content(place, MAX_INDEX_BYTES) or b"", paths)
    except (ValueError, RecursionError) as error:
        reason = f"is no safetensors index ({str(error)[:80]}); correct the catalog variant"
        raise UnsafeArtifactPath(file.path, reason) from None
    if missing:
        raise UnsafeArtifactPath(
            file.path, f"names {missing[0][:120]!r}, which the catalog variant does not list; add that file to it"
        )
