"""The environment of an engine: cleared, then only what a program needs to run and to find its GPU driver.

Never ``LLAMA_*`` (they would be options), tokens or keys of the daemon, and proxies and the address of the hub only for
an engine that fetches a repository itself. Contracts section 20.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_NAMES = frozenset({"PATH", "LANG", "LANGUAGE", "TMPDIR", "TMP", "TEMP", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"})
_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "VK_", "GGML_VK_", "GGML_CUDA_")


def engine_environment(environ: Mapping[str, str], cuda_indexes: tuple[int, ...] | None = None) -> dict[str, str]:
    """``cuda_indexes`` are NVML's; CUDA orders devices by speed unless told to use the bus order that NVML uses."""
    kept = {name: value for name, value in environ.items() if name in _NAMES or name.startswith(_PREFIXES)}
    if cuda_indexes is not None:
        kept["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in cuda_indexes)
    return kept


_NETWORK = frozenset({"HF_ENDPOINT", "SSL_CERT_FILE", "SSL_CERT_DIR"})
_PROXIES = frozenset({"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"})


def repository_environment(environ: Mapping[str, str], hub_home: Path) -> dict[str, str]:
    """What an engine needs beside its environment to fetch a repository into ``hub_home`` and nowhere else.

    No token: a raw reference reads what everybody may read.
    """
    kept = {name: value for name, value in environ.items() if name in _NETWORK or name.upper() in _PROXIES}
    return {**kept, "HF_HOME": str(hub_home), "HF_HUB_CACHE": str(hub_home / "hub")}
