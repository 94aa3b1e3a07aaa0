"""Rules for the whole suite: no blocking call on an event loop, and no real-engine test that is skipped."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster


@pytest.fixture(autouse=True)
def blockbuster(request: pytest.FixtureRequest) -> Iterator[BlockBuster]:
    """Async tests fail when our code blocks the loop; what tests themselves read and write is theirs."""
    guard = BlockBuster(scanned_modules=["sbproxy", "sbproxy_tui"])
    # The process's own /proc files are answered from memory: there is nothing to wait for.
    for name in ("io.BufferedReader.read", "io.TextIOWrapper.read", "os.listdir"):
        guard.functions[name].can_block_in("prometheus_client/process_collector.py", {"collect"})
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        guard.activate()
    yield guard
    guard.deactivate()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A real engine that is missing is a failure of the machine, never a reason to look away."""
    report = yield
    if report.skipped and item.get_closest_marker("real_engine") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped; a real-engine test must run"
    return report  # type: ignore[return-value]
