"""Finds files of the catalog in the caches of other programs, by size; they are only read, never trusted or changed.

A hit is a candidate: whoever imports it copies the bytes and hashes the copy, since its owner may change the original.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from sbproxy.artifacts.core.foreign import Origin, hub_folder, ollama_blobs, places, same_name
from sbproxy.artifacts.core.source import HubRepo, LocalFiles, Source, parse_source
from sbproxy.artifacts.disk import size_of
from sbproxy.catalog.core.model import CatalogFile, ResolvedArtifact, Variant

MAX_ENTRIES: Final = 20_000
"""Of one foreign folder tree; what lies beyond is not found."""
MAX_CANDIDATES: Final = 3
"""Copies of a file that are tried, since each costs a full read."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file of the right size, and whose cache it lies in."""

    path: Path
    origin: Origin


class ForeignCaches:
    """One look at the caches that an environment leads to. Blocking; folders that cannot be read count as empty.

    Ollama's manifests are not read: the name of a blob says all that they would.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._places = places(environ)

    def origin_of(self, artifact: ResolvedArtifact, missing: list[CatalogFile]) -> Origin | None:
        """Where all ``missing`` files could come from; that of the largest file when it is several caches."""
        found = [next(self.candidates(artifact.variant, file), None) for file in missing]
        if not found or None in found:
            return None
        largest = max(range(len(missing)), key=lambda index: missing[index].size_bytes)
        best = found[largest]
        return best.origin if best is not None else None

    def candidates(self, variant: Variant, file: CatalogFile) -> Iterator[Candidate]:
        """At most :data:`MAX_CANDIDATES`, those first that are known by name. None for a ``file:`` source."""
        source = parse_source(variant)
        if isinstance(source, LocalFiles):
            return
        tried: set[Path] = set()
        for candidate in self._all(source, file):
            if candidate.path not in tried and size_of(candidate.path) == file.size_bytes:
                tried.add(candidate.path)
                yield candidate
            if len(tried) == MAX_CANDIDATES:
                return

    def _all(self, source: Source, file: CatalogFile) -> Iterator[Candidate]:
        for root in self._places.ollama:
            yield from (Candidate(Path(root, name), "ollama") for name in ollama_blobs(file))
        yield from (Candidate(path, "hf hub") for path in self._hub_files(source, file))
        yield from (Candidate(path, "lm-studio") for path in self._studio_files(source, file))

    def _hub_files(self, source: Source, file: CatalogFile) -> Iterator[Path]:
        for root in map(Path, self._places.hub):
            if isinstance(source, HubRepo):
                snapshots = root / hub_folder(source) / "snapshots"
                yield snapshots / source.revision / file.path
                yield from (snapshots / name / file.path for name in _names(snapshots))
            # Large files are stored there under their SHA-256, whatever repository they came with.
            yield from (root / name / "blobs" / file.sha256 for name in self._hub_repositories[root])

    def _studio_files(self, source: Source, file: CatalogFile) -> Iterator[Path]:
        if isinstance(source, HubRepo):
            yield from (Path(root, source.repo, file.path) for root in self._places.lm_studio)
        of_size = self._studio_index.get(file.size_bytes, [])
        yield from sorted(of_size, key=lambda path: not same_name(path.name, file))

    @functools.cached_property
    def _hub_repositories(self) -> dict[Path, list[str]]:
        roots = map(Path, self._places.hub)
        return {root: [name for name in _names(root) if name.startswith("models--")] for root in roots}

    @functools.cached_property
    def _studio_index(self) -> dict[int, list[Path]]:
        index: dict[int, list[Path]] = {}
        for root in self._places.lm_studio:
            for path in islice(_files_below(Path(root)), MAX_ENTRIES):
                if (size := size_of(path)) is not None:
                    index.setdefault(size, []).append(path)
        return index


def _names(folder: Path) -> list[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(entry.name for entry in islice(entries, MAX_ENTRIES))
    return []


def _files_below(root: Path) -> Iterator[Path]:
    for parent, _folders, names in os.walk(root):
        yield from (Path(parent, name) for name in sorted(names))
