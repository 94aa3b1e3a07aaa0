# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Reload behavior"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Daemon
from support.document_world import (
    LAST_PROVIDER_LINE,
    TINY_DEPLOYMENT,
    act,
    catalog_model,
    edit,
    managed,
    reload,
    rows,
    until,
)

pytestmark = pytest.mark.e2e

CONFIG = FAKE_ENGINE_CONFIG.replace(
    TINY_DEPLOYMENT, TINY_DEPLOYMENT + "      other: {model: other-model, max_context: 128}\n"
) + managed("other", "other", "other")

PROVED_ELSEWHERE = {
    "deployments of compatibility blocks and canonical ones live together": "tests/config/test_config_serve_policy.py::test_canonical_and_served_deployments_live_together",
    "every mistake of a candidate is told at once": "tests/e2e/test_bad_input.py::test_every_mistake_of_a_file_at_once_each_with_its_line",
    "a refused candidate is torn down and frees the next": "tests/modelhost/test_modelhost_reload.py::test_abort_changes_nothing_and_frees_the_next_candidate",
    "room is reserved, and warm engines start, before the switch": "tests/modelhost/test_modelhost_reload.py::test_first_boot_starts_warm_and_pulls_on_boot",
    "a failed recreate puts the old generation back": "tests/modelhost/test_modelhost_reload.py::test_recreate_that_fails_restores_the_old_generation",
    "a restore can fail, and that is told": "tests/model_host_document/test_05_file_managed_edits.py::test_a_restore_that_fails_too_is_told_and_another_reload_mends_it",
    "an answer in flight ends on the routes that it began with": "tests/e2e/test_reload.py::test_answers_in_flight_finish_across_a_reload_that_removes_their_route",
    "the foundation changes only with nothing resident": "tests/modelhost/test_modelhost_reload.py::test_the_foundation_may_change_only_with_nothing_resident",
    "an empty store adopts a new catalog as its next revision": "tests/e2e/test_admin_managed.py::test_an_empty_store_adopts_a_new_catalog",
    "a stored map is fenced by its catalog": "tests/e2e/test_admin_managed.py::test_a_catalog_does_not_change_under_a_stored_map",
}
NOT_ON_ONE_MACHINE = {"reconciliation of cluster assignments, cursors and fences": "cluster"}


def more_models(folder: Path) -> str:
    return catalog_model(folder, "other-model")


@pytest.fixture
def good(served: Daemon) -> Iterator[Daemon]:
    """Both deployments run, and the files are as at the start, before and after."""
    text, catalog = served.config.read_text(), (served.directory / "catalog.yml").read_text()
    for name in ("tiny", "other"):
        assert act(served, "load", name)["state"] == "ready"
    yield served
    fake_engine.configure(served.directory)
    (served.directory / "catalog.yml").write_text(catalog)
    served.config.write_text(text)
    assert reload(served).status == 200
    until(lambda: {row["deployment"] for row in rows(served)} == {"tiny", "other"})


def running(handle: Daemon) -> dict[str, tuple[int, int]]:
    return {row["deployment"]: (row["generation"], row["pid"]) for row in rows(handle) if row["state"] == "ready"}


def test_only_what_changed_is_replaced(good: Daemon) -> None:
    """The other generation keeps its number and its process."""
    before = running(good)
    edit(good, "max_context: 128", "max_context: 64")
    assert reload(good).status == 200
    until(lambda: running(good).keys() == {"tiny", "other"})
    after = running(good)
    assert after["tiny"] == before["tiny"]
    assert after["other"][0] > before["other"][0]
    assert after["other"][1] != before["other"][1]


def test_a_candidate_is_wholly_wrong_when_one_part_is(good: Daemon) -> None:
    """A good change beside a route without a deployment is not taken either."""
    before = running(good)
    edit(good, "max_context: 128", "max_context: 64")
    edit(good, LAST_PROVIDER_LINE, LAST_PROVIDER_LINE + managed("gone", "gone", "gone"))
    answer = reload(good)
    assert answer.status == 400
    assert '"gone"' in answer.json()["error"]
    assert running(good) == before


FOUNDATION = [
    ("cache root", '/cache"}', '/elsewhere"}'),
    ("engine", "llama_cpp: {path:", "llama_cpp: {acceleration: cpu, path:"),
]


@pytest.mark.parametrize(("what", "old", "new"), FOUNDATION, ids=[each[0] for each in FOUNDATION])
def test_the_foundation_does_not_change_under_a_running_model(good: Daemon, what: str, old: str, new: str) -> None:
    """The refusal names what is resident; nothing is drained for it."""
    before = running(good)
    edit(good, old, new)
    answer = reload(good)
    assert (answer.status, answer.json()["code"]) == (400, "foundation_changed"), what
    assert "tiny" in answer.json()["error"]
    assert running(good) == before


def test_another_catalog_waits_until_nothing_is_desired(good: Daemon) -> None:
    """Reconciling to an empty map first, and applying the new catalog then, is the way."""
    catalog = good.directory / "catalog.yml"
    catalog.write_text(catalog.read_text().replace("catalog_revision: test-1", "catalog_revision: test-2"))
    before, text = running(good), good.config.read_text()
    assert reload(good).json()["code"] == "foundation_changed"
    assert running(good) == before
    catalog.write_text(catalog.read_text().replace("catalog_revision: test-2", "catalog_revision: test-1"))
    head, routes = text.split("    deployments:\n")[0], text.index("origins:")
    assert routes
    good.config.write_text(head)
    assert reload(good).status == 200
    until(lambda: rows(good) == [])
    catalog.write_text(catalog.read_text().replace("catalog_revision: test-1", "catalog_revision: test-2"))
    good.config.write_text(text)
    assert reload(good).status == 200
    assert good.chat().status == 200
    # Back to the first catalog, the same way.
    good.config.write_text(head)
    assert reload(good).status == 200
    until(lambda: rows(good) == [])
