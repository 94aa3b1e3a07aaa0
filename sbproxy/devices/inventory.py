"""What this machine has now: CPU memory within its control groups, NVIDIA devices, Apple's unified memory."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from sbproxy.devices.core.memory import (
    GroupMemory,
    MemoryPool,
    bounded,
    parse_darwin,
    parse_group,
    parse_group_paths,
    parse_meminfo,
    usable_cpus,
)
from sbproxy.devices.core.model import Device, Machine
from sbproxy.devices.nvidia import NvidiaProbe, NvmlLibrary

_SYSCTL = (
    "/usr/sbin/sysctl",
    *("hw.memsize", "hw.pagesize", "vm.page_free_count", "vm.page_purgeable_count", "vm.page_pageable_external_count"),
)
_V2_FILES = ("memory.max", "memory.current", "memory.stat")
_V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")


class MachineInventory:
    """A :class:`~sbproxy.modelhost.ports.DeviceInventory`. ``root`` is where ``/proc`` and ``/sys`` are looked for.

    After a probe ``nvidia_reason`` says why NVIDIA devices are missing or incomplete, None when nothing is.
    """

    def __init__(self, *, root: Path = Path("/"), nvml: NvmlLibrary | None = None, system: str | None = None) -> None:
        self._root = root
        self._nvidia = NvidiaProbe(nvml)
        self._system = system or platform.system()
        self.nvidia_reason: str | None = None

    def probe(self) -> Machine:
        """Blocking, milliseconds; raises OSError or ValueError only when the system hides its memory altogether."""
        arch = platform.machine()
        nvidia = self._nvidia.probe()
        self.nvidia_reason = nvidia.reason
        pool = self._darwin_memory() if self._system == "Darwin" else self._linux_memory()
        devices = [Device(-1, "cpu", _cpu_name(self._root, arch), pool.total_bytes, pool.free_bytes)]
        devices += nvidia.devices
        if self._system == "Darwin" and arch == "arm64":
            devices.append(Device(0, "metal", "Apple GPU (unified memory)", pool.total_bytes, pool.free_bytes))
        return Machine(
            os=self._system.lower(),
            arch=arch,
            cpu_count=self.cpu_count(),
            devices=tuple(devices),
            nvidia_driver=nvidia.driver,
            cuda_version=nvidia.cuda,
        )

    def cpu_count(self) -> int:
        """CPUs that threads of ours can really use: affinity and every group's quota."""
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        quotas = [text for folder in self._groups()[0] if (text := _read(folder / "cpu.max"))]
        return usable_cpus(affinity, quotas)

    def _linux_memory(self) -> MemoryPool:
        machine = parse_meminfo((self._root / "proc/meminfo").read_text(encoding="utf-8"))
        unified, v1 = self._groups()
        limits = [_group(folder, _V2_FILES) for folder in unified] + [_group(folder, _V1_FILES) for folder in v1]
        return bounded(machine, [limit for limit in limits if limit is not None])

    def _darwin_memory(self) -> MemoryPool:
        asked = subprocess.run(_SYSCTL, capture_output=True, text=True, check=False, timeout=10)
        return parse_darwin(asked.stdout)

    def _groups(self) -> tuple[list[Path], list[Path]]:
        """Our control group and all above it: folders of version 2, folders of version 1's memory controller."""
        unified, v1 = parse_group_paths(_read(self._root / "proc/self/cgroup"))
        mount = self._root / "sys/fs/cgroup"
        return _lineage(mount, unified), _lineage(mount / "memory", v1)


def _lineage(mount: Path, path: str | None) -> list[Path]:
    if path is None:
        return []
    # In a container without a cgroup namespace the path is the host's, and only the mount itself exists.
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    folders = [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def _group(folder: Path, names: tuple[str, str, str]) -> GroupMemory | None:
    limit, usage, stat = (_read(folder / name) for name in names)
    return parse_group(limit, usage, stat)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpu_name(root: Path, arch: str) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or arch
