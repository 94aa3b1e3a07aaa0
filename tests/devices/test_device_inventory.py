"""The machine as a whole: a made-up /proc and /sys, and NVML's module with a stand-in of the same shape."""

# ruff: noqa: N802 - NVML names its functions

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pynvml
import pytest

from sbproxy.devices.inventory import MachineInventory
from sbproxy.devices.nvidia import NvidiaProbe

GIB = 1024**3


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", f"MemTotal: {16 * 1024**2} kB\nMemAvailable: {12 * 1024**2} kB\n")
    write(tmp_path, "proc/cpuinfo", "processor : 0\nmodel name : Imaginary 9000\n")
    return tmp_path


class StandInNvml:
    """Two cards, one of which answers no memory question; raises pynvml's own errors."""

    NVMLError = pynvml.NVMLError

    def __init__(self) -> None:
        self.fail_init = False
        self.lost = False
        self.inits = 0

    def nvmlInit(self) -> None:
        self.inits += 1
        if self.fail_init:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    def nvmlShutdown(self) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def nvmlDeviceGetCount(self) -> int:
        if self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return index

    def nvmlDeviceGetName(self, handle: Any) -> bytes:
        return b"Imaginary H0"

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return types.SimpleNamespace(total=80 * GIB, free=60 * GIB, used=20 * GIB)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return types.SimpleNamespace(gpu=25, memory=3)

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, clock: int) -> int:
        assert clock == pynvml.NVML_CLOCK_MEM
        return 2000

    def nvmlDeviceGetMemoryBusWidth(self, handle: Any) -> int:
        return 4096

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12080


def test_cpu_without_any_group(root: Path) -> None:
    machine = MachineInventory(root=root, nvml=StandInNvml(), system="Linux").probe()
    assert machine.cpu.index == -1
    assert machine.cpu.name == "Imaginary 9000"
    assert machine.cpu.total_bytes == 16 * GIB
    assert machine.cpu.free_bytes == 12 * GIB
    assert machine.os == "linux"
    assert machine.cpu_count >= 1


def test_a_limit_on_a_parent_group_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/service/daemon\n")
    write(root, "sys/fs/cgroup/service/memory.max", str(4 * GIB))
    write(root, "sys/fs/cgroup/service/memory.current", str(3 * GIB))
    write(root, "sys/fs/cgroup/service/memory.stat", f"inactive_file {GIB}\n")
    write(root, "sys/fs/cgroup/service/daemon/memory.max", "max\n")
    write(root, "sys/fs/cgroup/service/daemon/cpu.max", "100000 100000\n")
    machine = MachineInventory(root=root, nvml=StandInNvml(), system="Linux").probe()
    assert machine.cpu.total_bytes == 4 * GIB
    assert machine.cpu.free_bytes == 2 * GIB
    assert machine.cpu_count == 1


def test_version_1_in_a_container_that_sees_only_the_mount(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/docker/0123\n0::/\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(GIB))
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", str(GIB // 4))
    write(root, "sys/fs/cgroup/memory/memory.stat", "total_inactive_file 0\n")
    machine = MachineInventory(root=root, nvml=StandInNvml(), system="Linux").probe()
    assert machine.cpu.total_bytes == GIB
    assert machine.cpu.free_bytes == GIB * 3 // 4


def test_this_machine() -> None:
    machine = MachineInventory().probe()
    assert 0 < machine.cpu.free_bytes <= machine.cpu.total_bytes


def test_nvidia_devices_and_the_one_that_fails() -> None:
    facts = NvidiaProbe(StandInNvml()).probe()
    (device,) = facts.devices
    assert device.index == 0
    assert device.kind == "cuda"
    assert device.name == "Imaginary H0"
    assert device.total_bytes == 80 * GIB
    assert device.free_bytes == 60 * GIB
    assert device.compute_capability == (9, 0)
    assert device.supports_fp8
    assert device.compute_utilization == 0.25
    assert device.memory_occupancy == 0.25
    assert device.bandwidth_bytes_per_s == 2 * 2000 * 10**6 * 512
    assert facts.driver == "570.1"
    assert facts.cuda == "12.8"
    assert facts.reason is not None
    assert facts.reason.startswith("device 1: ")


def test_no_driver_is_a_reason_and_is_asked_again(root: Path) -> None:
    nvml = StandInNvml()
    nvml.fail_init = True
    inventory = MachineInventory(root=root, nvml=nvml, system="Linux")
    assert inventory.probe().accelerated == ()
    assert inventory.nvidia_reason is not None
    assert "Driver" in inventory.nvidia_reason
    nvml.fail_init = False
    assert len(inventory.probe().accelerated) == 1


def test_a_lost_driver_is_initialised_again() -> None:
    nvml = StandInNvml()
    probe = NvidiaProbe(nvml)
    assert probe.probe().devices
    nvml.lost = True
    assert probe.probe().devices == ()
    nvml.lost = False
    assert probe.probe().devices
    assert nvml.inits == 2


def test_the_real_module_without_a_driver_is_a_reason_or_devices() -> None:
    facts = NvidiaProbe().probe()
    assert facts.devices or facts.reason
