"""The generated configuration on disk: 0600 in a 0700 folder of its own, gone when the command returns."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml


def as_yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=False, allow_unicode=True)


@contextmanager
def private_config(document: dict[str, Any]) -> Iterator[Path]:
    """Write ``document`` as sb.yml and remove file and folder at the end of the block, however it ends."""
    with tempfile.TemporaryDirectory(prefix="sbproxy-run-") as folder:
        path = Path(folder) / "sb.yml"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(as_yaml(document))
        yield path
