"""Values: what a machine can hold a model in. Probing lives in ``sbproxy.devices.inventory``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "cuda", "metal"]


@dataclass(frozen=True, slots=True)
class Device:
    """One memory pool, sizes in bytes. The CPU is index -1; CUDA devices count from 0 as NVML orders them.

    ``compute_utilization`` is 0..1 or None when unknown; ``memory_occupancy`` is used/total.
    """

    index: int
    kind: DeviceKind
    name: str
    total_bytes: int
    free_bytes: int
    compute_capability: tuple[int, int] | None = None
    compute_utilization: float | None = None
    bandwidth_bytes_per_s: int | None = None

    @property
    def supports_fp8(self) -> bool:
        return self.compute_capability is not None and self.compute_capability >= (8, 9)

    @property
    def memory_occupancy(self) -> float:
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """All devices of this machine at one moment, and the versions of what drives them (None: absent)."""

    os: str
    arch: str
    cpu_count: int
    devices: tuple[Device, ...]
    nvidia_driver: str | None = None
    cuda_version: str | None = None

    @property
    def cpu(self) -> Device:
        return next(device for device in self.devices if device.kind == "cpu")

    @property
    def accelerated(self) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.kind != "cpu")
