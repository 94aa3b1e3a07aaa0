"""Looks for what a CUDA engine outside a container builds its kernels with, on this machine. Reads no network."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from sbproxy.engines.core.python_pins import CUDA_HEADERS, NINJA, NVCC, PYTHON_HEADERS, Tool

_USUAL_CUDA = Path("/usr/local/cuda")


def missing_tools(environ: Mapping[str, str], include: Path | None = None) -> tuple[Tool, ...]:
    """What is not here. ``include``: the folder of this Python's headers, the default."""
    headers = include or Path(sysconfig.get_path("include"))
    nvcc = _nvcc(environ)
    found = {
        PYTHON_HEADERS: (headers / "Python.h").is_file(),
        NINJA: _which("ninja", environ) is not None,
        NVCC: nvcc is not None,
        CUDA_HEADERS: nvcc is not None and _has_headers(nvcc),
    }
    return tuple(tool for tool, here in found.items() if not here)


def _nvcc(environ: Mapping[str, str]) -> Path | None:
    homes = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    for home in (*homes, _USUAL_CUDA):
        if os.access(home / "bin" / "nvcc", os.X_OK):
            return home / "bin" / "nvcc"
    found = _which("nvcc", environ)
    return Path(found) if found else None


def _has_headers(nvcc: Path) -> bool:
    home = nvcc.resolve().parent.parent
    places = (home / "include", *home.glob("targets/*/include"), Path("/usr/include"))
    return any((place / "cuda_runtime.h").is_file() for place in places)


def _which(name: str, environ: Mapping[str, str]) -> str | None:
    return shutil.which(name, path=environ.get("PATH", os.defpath))
