# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Desired-state authority": who owns the deployments."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli import sbproxy
from support.daemon import FAKE_ENGINE_CONFIG, PASSWORD, Daemon, tiny_catalog
from support.document_world import HOST, TINY_DEPLOYMENT, admin

pytestmark = pytest.mark.e2e

CONFIG = FAKE_ENGINE_CONFIG

PROVED_ELSEWHERE = {
    "under admin_managed the store is what runs, and what runs again after a restart": "tests/e2e/test_admin_managed.py::test_from_an_empty_store_to_a_served_model_and_over_a_restart",
    "its writes replace the whole map against an expected revision, and of two one wins": "tests/e2e/test_admin_managed.py::test_of_two_replacements_of_one_revision_one_wins",
    "two writers lose no update": "tests/e2e/test_admin_managed.py::test_two_daemons_on_one_store_lose_no_update",
    "under admin_managed the file defines no deployments": "tests/e2e/test_admin_managed.py::test_validate_opens_nothing_and_the_file_defines_no_deployments",
    "under file_managed sb.yml is the authority, and a reload takes its map": "tests/daemon/test_daemon_desired_state.py::test_the_file_is_read_where_it_is_the_authority",
}
NOT_ON_ONE_MACHINE = {
    "nodes that place from the same file and report where theirs differs": "cluster",
    "signed bundles, their signer, digest, revision and expiry": "cluster",
    "the page that shows the file's map read-only with the instruction to edit and reload": "M4",
}


def test_the_files_map_is_shown_and_cannot_be_written(served: Daemon) -> None:
    """With file_managed, which is also what silence means, the map is read-only and has no stored revision."""
    assert "authority:" not in served.config.read_text()
    document = admin(served, "GET", f"{HOST}/deployments").json()
    assert document["deployments"].keys() == {"tiny"}
    assert {key: document[key] for key in ("authority", "read_only", "revision", "content_digest")} == {
        "authority": "file_managed",
        "read_only": True,
        "revision": None,
        "content_digest": None,
    }
    answer = admin(served, "PUT", f"{HOST}/deployments", {"expected_revision": None, "deployments": {}})
    assert (answer.status, answer.json()["code"]) == (403, "authority_read_only")
    assert served.chat().status == 200


@pytest.mark.parametrize(
    ("host", "proxy", "named"),
    [
        ("    authority: cluster_authority\n", "", "proxy.model_host.authority"),
        ("    authority: admin_managed\n    store_path: s.sqlite3\n", "  cluster: {cluster_id: c}\n", "proxy.cluster"),
        ("    authority: admin_managed\n", "", "store_path"),
        ("    authority: somebody\n", "", "proxy.model_host.authority"),
    ],
    ids=["cluster-authority", "store-and-cluster", "store-without-path", "unknown"],
)
def test_a_mixture_that_cannot_be_is_refused_before_anything_is_prepared(
    tmp_path: Path, host: str, proxy: str, named: str
) -> None:
    """An authority that this process cannot have is named by validation, with its place in the file."""
    tiny_catalog(tmp_path)
    text = FAKE_ENGINE_CONFIG.replace(f"    deployments:\n{TINY_DEPLOYMENT}", host).replace(
        "  model_host:\n", f"{proxy}  model_host:\n"
    )
    path = tmp_path / "sb.yml"
    path.write_text(text.replace("{port}", "8080").replace("{admin_port}", "9090").replace("{dir}", str(tmp_path)))
    ran = sbproxy("validate", str(path), env={"SB_ADMIN_PASSWORD": PASSWORD})
    assert ran.code != 0
    assert named in ran.err
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "s.sqlite3").exists()
