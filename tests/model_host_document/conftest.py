"""One daemon a heading: ``served`` runs the module's ``CONFIG``, with the fake engine behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import fake_engine
from support.daemon import Daemon, daemon, tiny_catalog


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Started; ``MORE_MODELS`` of the module stands at the end of its catalog."""
    folder = tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2])
    catalog = tiny_catalog(folder)
    with catalog.open("a") as text:
        text.write(getattr(request.module, "MORE_MODELS", ""))
    fake_engine.install(folder)
    with daemon(folder, request.module.CONFIG) as handle:
        handle.start()
        yield handle
