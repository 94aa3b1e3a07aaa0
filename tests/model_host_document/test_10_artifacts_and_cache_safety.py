# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Artifacts and cache safety"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.cli import sbproxy
from support.daemon import FAKE_ENGINE_CONFIG, Daemon, tiny_catalog
from support.document_world import HOST, admin, catalog_model, cli_json
from support.hub import Hub

pytestmark = pytest.mark.e2e

PROVED_ELSEWHERE = {
    "the layout, file by file": "tests/artifacts/test_artifacts_fetch.py::test_a_pull_lays_the_store_out_as_the_contract_says",
    "wrong length or digest publishes nothing": "tests/artifacts/test_artifacts_store.py::test_local_sources_that_are_not_what_the_catalog_says",
    "bytes that rot are found and withdrawn": "tests/artifacts/test_artifacts_store.py::test_bit_rot_is_found_withdrawn_and_repaired",
    "pickle files need the catalog's opt-in": "tests/artifacts/test_artifacts_store.py::test_pickle_needs_the_opt_in_whatever_the_format_says",
    "and pass a scan": "tests/artifacts/test_artifacts_pickle.py::test_a_hostile_checkpoint_leaves_nothing",
    "a token goes to the hub alone, never on to where it redirects": "tests/artifacts/test_artifacts_fetch.py::test_a_token_opens_it_and_stays_with_the_hub",
    "no secret in errors, records, representations or logs": "tests/artifacts/test_artifacts_fetch.py::test_no_secret_in_errors_records_reprs_or_logs",
    "nor in the errors of jobs": "tests/modelhost/test_modelhost_jobs.py::test_errors_are_bounded_and_lose_their_tokens",
    "an explicit pull ends in a collection to the budget": "tests/cli/test_cli_models_cache.py::test_a_pull_ends_in_a_collection_to_the_budget",
    "so does one through the admin API, beside what runs": "tests/artifacts/test_artifacts_daemon.py::test_what_runs_stays_and_what_is_spare_goes",
    "configured, resident, pinned, locked and busy artifacts are protected": "tests/artifacts/test_artifacts_collection.py::test_every_protection",
    "a shared blob counts once and stays with its last reference": "tests/artifacts/test_artifacts_collection.py::test_a_shared_blob_stays_with_its_last_reference",
    "blobs of a pull at work are nobody's orphans": "tests/artifacts/test_artifacts_collection.py::test_blobs_of_a_pull_at_work_are_not_loose",
    "the lease of another process holds until that process ends": "tests/artifacts/test_artifacts_processes.py::test_a_lease_of_another_process_blocks_removal_until_that_process_ends",
}

CONFIG = FAKE_ENGINE_CONFIG.replace('/cache"}', '/cache", budget_gib: 0.000004}')


def more_models(folder: Path) -> str:
    return catalog_model(folder, "spare")


def place(handle: Daemon) -> tuple[str, ...]:
    return ("--catalog-file", str(handle.directory / "catalog.yml"), "--cache-dir", str(handle.directory / "cache"))


def test_an_acquisition_for_a_request_collects_nothing(served: Daemon) -> None:
    """The budget is enforced by explicit pulls; what a request fetches may exceed it, and displaces no artifact."""
    pulled = cli_json(served, "models", "pull", "spare", *place(served))["artifacts"]
    assert served.chat().status == 200
    held = {each["artifact_digest"] for each in admin(served, "GET", f"{HOST}/files").json()["artifacts"]}
    assert held == {pulled[0]["artifact_digest"], served.status_row()["artifact_digest"]}
    assert admin(served, "GET", f"{HOST}/files").json()["total_bytes"] > 0.000004 * 2**30


def test_the_root_has_the_folders_of_the_page(served: Daemon) -> None:
    """Blobs by digest, snapshots, records, unfinished parts, locks and jobs, each in its own place."""
    cache = served.directory / "cache"
    assert {"blobs", "snapshots", "metadata", "partials", "locks", "jobs"} <= {each.name for each in cache.iterdir()}
    digest = served.status_row()["artifact_digest"]
    record = json.loads((cache / "metadata" / f"{digest}.json").read_text())
    for file in record["files"]:
        assert (cache / "blobs" / "sha256" / file["sha256"]).stat().st_size == file["size_bytes"]
        assert (cache / "snapshots" / digest / file["path"]).stat().st_size == file["size_bytes"]


def test_another_process_cannot_remove_what_runs(served: Daemon) -> None:
    """The running engine's lease holds against a command that knows nothing of the daemon."""
    assert served.chat().status == 200
    ran = sbproxy("models", "remove", "tiny-model", *place(served), env={"SB_ADMIN_URL": "http://127.0.0.1:9"})
    assert ran.code == 2
    assert "cannot be removed: it is leased" in ran.err
    assert served.status_row()["state"] == "ready"
    assert (served.directory / "cache" / "snapshots" / served.status_row()["artifact_digest"] / "tiny.gguf").is_file()


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_a_gated_repository_opens_with_either_variable(tmp_path: Path, variable: str) -> None:
    """Explicit pulls take the token from the environment; it is written nowhere."""
    token = "hf_canary0123456789abcdef"
    tiny_catalog(tmp_path, "hf:Org/Gated")
    data = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "tiny.gguf").unlink()
    line = (
        "models",
        "pull",
        "tiny-model",
        "--catalog-file",
        str(tmp_path / "catalog.yml"),
        "--cache-dir",
        str(tmp_path / "cache"),
    )
    with Hub({"Org/Gated/tiny.gguf": data}, token=token, gated=["Org/Gated"]) as hub:
        shut = sbproxy(*line, env={"HF_ENDPOINT": hub.url, "HOME": str(tmp_path)})
        opened = sbproxy(
            *line, "--format", "json", env={"HF_ENDPOINT": hub.url, "HOME": str(tmp_path), variable: token}
        )
    assert shut.code != 0
    assert "HF_TOKEN" in shut.err
    assert opened.code == 0, opened.err
    artifacts: list[dict[str, Any]] = json.loads(opened.out)["artifacts"]
    assert artifacts[0]["verified_bytes"] == len(data)
    assert token not in opened.out + opened.err + shut.err
    written = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not [path for path in written if token.encode() in path.read_bytes()]
