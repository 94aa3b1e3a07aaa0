"""One daemon a heading: ``served`` runs the module's ``CONFIG``, with the fake engine behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import fake_engine
from support.daemon import Daemon, daemon, tiny_catalog


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Started; what ``more_models`` of the module makes of the folder stands at the end of its catalog."""
    folder = tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2])
    catalog = tiny_catalog(folder)
    if hasattr(request.module, "more_models"):
        with catalog.open("a") as text:
            text.write(request.module.more_models(folder))
    fake_engine.install(folder)
    with daemon(folder, request.module.CONFIG) as handle:
        handle.start()
        yield handle
