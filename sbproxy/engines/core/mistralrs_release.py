"""Which release archive of mistral.rs fits a machine. Decides by platform, acceleration, GPU and driver.

No digest is checked in: which bytes are right is the operator's ``sha256``. Document 1, "mistral.rs".
"""

from __future__ import annotations

import re

from sbproxy.devices.core.model import Machine
from sbproxy.engines.core.mistralrs_argv import ENGINE
from sbproxy.engines.core.pins import HostPlatform
from sbproxy.errors.engines import EngineIncompatible

RELEASES = "https://github.com/EricLBuehler/mistral.rs/releases/download"
PROGRAM = "mistralrs"
VERSION = "v0.9.0"
"""The release that this version of sbproxy is written for (contracts section 20)."""
MIN_CUDA = (12, 8)

_CPU = "mistralrs-cpu-x86_64-unknown-linux-gnu.tar.gz"
_METAL = "mistralrs-metal-aarch64-apple-darwin.tar.gz"


def is_release(version: str) -> bool:
    """Whether a configured version is a release tag (``v0.9.0``)."""
    return re.fullmatch(r"v[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}", version) is not None


def incomplete_pin(version: str | None) -> str:
    """Why no release archive can be fetched, and what to write instead."""
    if version is None:
        missing = f"engines.mistralrs.version ({VERSION}) and engines.mistralrs.sha256 of its archive"
    else:
        missing = f"engines.mistralrs.sha256 of the archive of {version}"
    return (
        f"incomplete pin: this version of sbproxy knows no digest of a mistral.rs archive; set {missing}"
        " for this machine, or engines.mistralrs.path of an installed mistralrs"
    )


def archive_name(host: HostPlatform, acceleration: str, machine: Machine) -> str:
    """The file name that the project publishes for this machine. Raises EngineIncompatible with the reason."""
    if acceleration == "vulkan":
        raise EngineIncompatible(ENGINE, "no release is built for Vulkan; use cuda, metal or cpu")
    if (host.system, host.machine) == ("Darwin", "arm64"):
        if acceleration == "cuda":
            raise EngineIncompatible(ENGINE, "there is no CUDA on macOS; use metal or cpu")
        return _METAL
    if (host.system, host.machine) != ("Linux", "x86_64"):
        raise EngineIncompatible(
            ENGINE, f"releases are for Linux x86_64 and Apple Silicon, this is {host.system} {host.machine}"
        )
    if acceleration == "metal":
        raise EngineIncompatible(ENGINE, "there is no Metal on Linux; use cuda or cpu")
    cards = [device for device in machine.devices if device.kind == "cuda"]
    if acceleration == "cpu" or (acceleration == "auto" and not cards):
        return _CPU
    if not cards:
        raise EngineIncompatible(ENGINE, "acceleration is cuda and this machine has no NVIDIA device")
    return _cuda_archive({card.compute_capability for card in cards}, machine.cuda_version)


def _cuda_archive(capabilities: set[tuple[int, int] | None], cuda_version: str | None) -> str:
    """One archive serves one compute capability."""
    needed = ".".join(map(str, MIN_CUDA))
    if (_numbers(cuda_version) or (0, 0)) < MIN_CUDA:
        raise EngineIncompatible(
            ENGINE, f"its CUDA builds need an NVIDIA driver for CUDA {needed} or newer, this one is for {cuda_version}"
        )
    known = sorted(capability for capability in capabilities if capability is not None)
    if len(capabilities) != 1 or not known:
        seen = ", ".join(f"{major}.{minor}" for major, minor in known) or "unknown"
        raise EngineIncompatible(
            ENGINE, f"a CUDA build is for one compute capability, the devices here have {seen}; use acceleration cpu"
        )
    major, minor = known[0]
    return f"mistralrs-cuda-sm{major}{minor}-x86_64-unknown-linux-gnu.tar.gz"


def _numbers(version: str | None) -> tuple[int, int] | None:
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,3})", version or "")
    return (int(match[1]), int(match[2])) if match else None
