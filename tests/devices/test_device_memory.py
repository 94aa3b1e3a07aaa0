"""Memory and CPU that this process may use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

GIB = 1024**3


def test_meminfo() -> None:
    text = "MemTotal:       16000 kB\nMemFree:  1000 kB\nMemAvailable:    9000 kB\nHugePages_Total: 3\nodd line\n"
    assert parse_meminfo(text) == MemoryPool(16000 * 1024, 9000 * 1024)


def test_meminfo_of_an_old_kernel_and_of_none() -> None:
    assert parse_meminfo("MemTotal: 100 kB\nMemFree: 10 kB\nCached: 20 kB\n") == MemoryPool(102400, 30720)
    with pytest.raises(ValueError, match="MemTotal"):
        parse_meminfo("")


def test_a_groups_cache_counts_as_free() -> None:
    group = parse_group("1000\n", "900\n", "anon 400\ninactive_file 300\n")
    assert group == GroupMemory(1000, 900, 300)
    assert group.free_bytes == 400


def test_v1_counts_children_in_its_total_row() -> None:
    assert parse_group("1000", "900", "inactive_file 1\ntotal_inactive_file 500") == GroupMemory(1000, 900, 500)


@pytest.mark.parametrize(("limit", "usage"), [("max\n", "5"), ("", ""), ("5", ""), ("5", "x")])
def test_no_limit(limit: str, usage: str) -> None:
    assert parse_group(limit, usage, "") is None


def test_group_paths() -> None:
    assert parse_group_paths("0::/user.slice/a\n") == ("/user.slice/a", None)
    assert parse_group_paths("5:cpu,cpuacct:/x\n4:memory:/docker/ab\n0::/\n") == ("/", "/docker/ab")
    assert parse_group_paths("garbage") == (None, None)


def test_the_tightest_group_wins() -> None:
    groups = [GroupMemory(8 * GIB, 7 * GIB, 0), GroupMemory(4 * GIB, GIB, 0), GroupMemory(2**63 - 4096, 0, 0)]
    assert bounded(MemoryPool(16 * GIB, 12 * GIB), groups) == MemoryPool(4 * GIB, GIB)


@given(
    st.integers(1, 2**50),
    st.integers(0, 2**50),
    st.lists(st.builds(GroupMemory, st.integers(0, 2**63), st.integers(0, 2**50), st.integers(0, 2**50)), max_size=5),
)
def test_bounds_never_grow(total: int, free: int, groups: list[GroupMemory]) -> None:
    machine = MemoryPool(total, min(total, free))
    pool = bounded(machine, groups)
    assert 0 <= pool.free_bytes <= machine.free_bytes
    assert pool.total_bytes <= machine.total_bytes


@pytest.mark.parametrize(
    ("quotas", "count"),
    [
        ([], 8),
        (["max 100000"], 8),
        (["150000 100000"], 2),
        (["50000 100000"], 1),
        (["400000 100000", "max 1"], 4),
        (["x"], 8),
    ],
)
def test_cpu_quota(quotas: list[str], count: int) -> None:
    assert usable_cpus(8, quotas) == count


def test_darwin() -> None:
    rows = "hw.memsize: 1000000\nhw.pagesize: 100\nvm.page_free_count: 10\nvm.page_purgeable_count: 20\n"
    assert parse_darwin(rows + "vm.page_pageable_external_count: 30\n") == MemoryPool(1_000_000, 6000)
    with pytest.raises(ValueError, match="pageable_external"):
        parse_darwin(rows)
