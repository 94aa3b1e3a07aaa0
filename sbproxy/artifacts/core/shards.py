"""Decides whether a model that is split over several files is complete: GGUF parts, and a safetensors index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

INDEX_SUFFIX: Final = ".safetensors.index.json"
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf|\.safetensors)", re.DOTALL)


def missing_parts(paths: Iterable[str]) -> list[str]:
    """The first part of each split model that the others promise (``x-00001-of-00003.gguf``) and ``paths`` lacks."""
    here = set(paths)
    models = {part.group(1, 3, 4) for path in here if (part := _PART.fullmatch(path))}
    absent = (next((name for name in _names(*model) if name not in here), None) for model in models)
    return sorted(name for name in absent if name is not None)


def missing_of_index(index_path: str, data: bytes, paths: Iterable[str]) -> list[str]:
    """Files that a safetensors index sends its tensors to and that are not among ``paths``.

    Raises ValueError for what is no index.
    """
    document = json.loads(data)
    mapped = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(mapped, dict) or not all(isinstance(name, str) for name in mapped.values()):
        raise ValueError("it has no weight_map from tensors to files")
    beside = PurePosixPath(index_path).parent
    return sorted({str(beside / name) for name in mapped.values()} - set(paths))


def _names(stem: str, total: str, suffix: str) -> Iterable[str]:
    return (f"{stem}-{number:05}-of-{total}{suffix}" for number in range(1, int(total) + 1))
