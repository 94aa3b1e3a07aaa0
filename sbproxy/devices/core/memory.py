"""How much memory and CPU this process may really use, from what the system says. Pure parsing and arithmetic.

A control group's page cache can be given back, so a limit's free part is the limit less the working set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryPool:
    """Bytes: all there is, and what can still be taken without swapping or being killed."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """One control group's limit and usage in bytes; ``inactive_file_bytes`` is cache that the kernel can drop."""

    limit_bytes: int
    usage_bytes: int
    inactive_file_bytes: int

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - max(0, self.usage_bytes - self.inactive_file_bytes))


def parse_meminfo(text: str) -> MemoryPool:
    """``/proc/meminfo``; ValueError without MemTotal. Old kernels have no MemAvailable: free and cached then."""
    rows: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            rows[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    if "MemTotal" not in rows:
        raise ValueError("no MemTotal")
    available = rows.get("MemAvailable", rows.get("MemFree", 0) + rows.get("Cached", 0))
    return MemoryPool(rows["MemTotal"], min(available, rows["MemTotal"]))


def parse_group(limit: str, usage: str, stat: str) -> GroupMemory | None:
    """The three files of one group (v2: memory.max, memory.current, memory.stat; v1 alike); None when unlimited."""
    if not limit.strip().isdigit() or not usage.strip().isdigit():
        return None
    inactive = 0
    for line in stat.splitlines():
        name, _, value = line.partition(" ")
        # v1 counts the children only in the total_ row.
        if name in ("inactive_file", "total_inactive_file") and value.strip().isdigit():
            inactive = max(inactive, int(value))
    return GroupMemory(int(limit), int(usage), inactive)


def parse_group_paths(text: str) -> tuple[str | None, str | None]:
    """``/proc/self/cgroup``: the v2 path and the path of v1's memory controller."""
    unified = v1 = None
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            unified = path
        elif "memory" in controllers.split(","):
            v1 = path
    return unified, v1


def bounded(machine: MemoryPool, groups: list[GroupMemory]) -> MemoryPool:
    """The tightest of the machine and every group above us; v1 says 'unlimited' as a number larger than any machine."""
    return MemoryPool(
        total_bytes=min([machine.total_bytes, *(group.limit_bytes for group in groups)]),
        free_bytes=min([machine.free_bytes, *(group.free_bytes for group in groups)]),
    )


def usable_cpus(affinity: int, quotas: list[str]) -> int:
    """CPUs for threads: the affinity mask, cut by each group's ``cpu.max`` (``max 100000`` or ``150000 100000``)."""
    count = affinity
    for quota in quotas:
        words = quota.split()
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]) > 0:
            count = min(count, max(1, math.ceil(int(words[0]) / int(words[1]))))
    return count


def parse_darwin(text: str) -> MemoryPool:
    """Lines ``name: value`` of sysctl: hw.memsize, hw.pagesize and the page counts. ValueError when one is missing."""
    rows = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    try:
        page = int(rows["hw.pagesize"])
        total = int(rows["hw.memsize"])
        pages = sum(int(rows[f"vm.page_{kind}_count"]) for kind in ("free", "purgeable", "pageable_external"))
    except KeyError as missing:
        raise ValueError(f"sysctl gave no {missing.args[0]}") from None
    return MemoryPool(total, min(total, pages * page))
