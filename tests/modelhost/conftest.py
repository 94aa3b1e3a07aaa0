"""The scripted world that these tests run a host in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.model_host_parts import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A host over scripted parts; at the end everything must be gone."""
    made = World(tmp_path)
    yield made
    await made.close()
