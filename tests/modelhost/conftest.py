"""Nothing in these tests may block the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from support.model_host_parts import World


@pytest.fixture(autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    with blockbuster_ctx("sbproxy") as guard:
        yield guard


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A host over scripted parts; at the end everything must be gone."""
    made = World(tmp_path)
    yield made
    await made.close()
