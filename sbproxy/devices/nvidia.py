"""NVIDIA devices through NVML. No driver or library, or any NVML error: no devices and a reason, no exception."""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass
from typing import Any, Protocol, cast

from sbproxy.devices.core.model import Device

_MEMORY_CLOCK = 2
"""NVML_CLOCK_MEM."""


class NvmlLibrary(Protocol):
    """The part of the module ``pynvml`` (distribution nvidia-ml-py) that is used here."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: Any) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]: ...  # noqa: N802
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMaxClockInfo(self, handle: Any, clock: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetMemoryBusWidth(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlSystemGetDriverVersion(self) -> str | bytes: ...  # noqa: N802
    def nvmlSystemGetCudaDriverVersion_v2(self) -> int: ...  # noqa: N802


@dataclass(frozen=True, slots=True)
class NvidiaFacts:
    """``reason`` says why something is missing; it is None when everything could be read."""

    devices: tuple[Device, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    reason: str | None = None


class NvidiaProbe:
    """Asks NVML; thread-safe. The library stays initialised between probes because that is its slow part."""

    def __init__(self, library: NvmlLibrary | None = None) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._initialised = False

    def probe(self) -> NvidiaFacts:
        with self._lock:
            if self._library is None:
                try:
                    self._library = cast("NvmlLibrary", importlib.import_module("pynvml"))
                except ImportError:
                    return NvidiaFacts(reason="the package nvidia-ml-py is not installed")
            library = self._library
            try:
                if not self._initialised:
                    library.nvmlInit()
                    self._initialised = True
                return self._read(library)
            except library.NVMLError as failure:
                self._forget(library)
                return NvidiaFacts(reason=_words(failure))

    def _read(self, library: NvmlLibrary) -> NvidiaFacts:
        cuda = library.nvmlSystemGetCudaDriverVersion_v2()
        devices: list[Device] = []
        reasons: list[str] = []
        for index in range(library.nvmlDeviceGetCount()):
            try:
                devices.append(_device(library, index))
            except library.NVMLError as failure:
                # One card that fell off the bus must not hide the others.
                reasons.append(f"device {index}: {_words(failure)}")
        return NvidiaFacts(
            devices=tuple(devices),
            driver=_text(library.nvmlSystemGetDriverVersion()),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            reason="; ".join(reasons) or None,
        )

    def _forget(self, library: NvmlLibrary) -> None:
        """After an error start afresh at the next probe; the driver may have been reloaded."""
        if self._initialised:
            self._initialised = False
            try:
                library.nvmlShutdown()
            except library.NVMLError:
                return


def _device(library: NvmlLibrary, index: int) -> Device:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    memory = library.nvmlDeviceGetMemoryInfo(handle)
    return Device(
        index=index,
        kind="cuda",
        name=_text(library.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        compute_capability=_capability(library, handle),
        compute_utilization=_utilization(library, handle),
        bandwidth_bytes_per_s=_bandwidth(library, handle),
    )


def _capability(library: NvmlLibrary, handle: Any) -> tuple[int, int] | None:
    try:
        major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
    except library.NVMLError:
        return None
    return major, minor


def _utilization(library: NvmlLibrary, handle: Any) -> float | None:
    try:
        return float(library.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except library.NVMLError:
        return None


def _bandwidth(library: NvmlLibrary, handle: Any) -> int | None:
    """Two transfers a clock over the whole bus."""
    try:
        megahertz = library.nvmlDeviceGetMaxClockInfo(handle, _MEMORY_CLOCK)
        bits = library.nvmlDeviceGetMemoryBusWidth(handle)
    except library.NVMLError:
        return None
    return 2 * megahertz * 1_000_000 * bits // 8


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _words(failure: Exception) -> str:
    return str(failure)[:200] or type(failure).__name__
