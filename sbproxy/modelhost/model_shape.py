"""Reads from disk what a memory estimate needs to know of a model: a GGUF header, or a ``config.json``. Blocking."""

from __future__ import annotations

import logging
from pathlib import Path

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.modelhost.core.gguf import MAX_HEADER_BYTES, GgufProblem, HeaderShort, ModelShape, parse_shape
from sbproxy.modelhost.core.hf_config import MAX_BYTES, ConfigProblem, parse_config
from sbproxy.modelhost.demand import weight_file

log = logging.getLogger(__name__)

_FIRST_READ = 64 << 10


def read_shape(path: Path) -> ModelShape:
    """The shape of one model file. Raises GgufProblem for a damaged or hostile header, OSError for the disk."""
    size = _FIRST_READ
    with path.open("rb") as file:
        data = b""
        while True:
            data += file.read(size - len(data))
            try:
                return parse_shape(data)
            except HeaderShort:
                if len(data) < size:
                    raise  # the whole file is here
                if size >= MAX_HEADER_BYTES:
                    raise GgufProblem(f"the header is larger than {MAX_HEADER_BYTES} bytes") from None
                size = min(size * 8, MAX_HEADER_BYTES)


def shape_of(artifact: ResolvedArtifact, snapshot: Path) -> ModelShape | None:
    """The shape of a verified artifact; None for one whose header or configuration is missing or cannot be read.

    That stops nobody: the engine is the judge of its files, and one newer than these parsers must run. The estimate
    then rests on the catalog, and the log says so.
    """
    path = snapshot / (weight_file(artifact.variant) if artifact.variant.format == "gguf" else "config.json")
    try:
        return read_shape(path) if artifact.variant.format == "gguf" else _read_config(path)
    except (GgufProblem, ConfigProblem, OSError) as problem:
        log.warning(
            "%s: %s: %s; its KV cache is estimated from the catalog alone", artifact.subject, path.name, problem
        )
        return None


def _read_config(path: Path) -> ModelShape:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigProblem(f"it is larger than {MAX_BYTES} bytes")
    return parse_config(data.decode("utf-8", "replace"))
