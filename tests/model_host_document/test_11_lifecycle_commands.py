# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Lifecycle commands": ``sbproxy models`` over a catalog and a cache, without a daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.cli import Ran, environment, sbproxy
from support.daemon import tiny_catalog
from support.document_world import catalog_model

PROVED_ELSEWHERE = {
    "one exact artifact is pulled, offline when asked": "tests/cli/test_cli_models_offline.py::test_pull_publishes_records_a_job_and_is_idempotent",
    "offline without a copy is a refusal": "tests/cli/test_cli_models_offline.py::test_offline_without_a_copy",
    "list and show have the documented fields": "tests/cli/test_cli_models_offline.py::test_list_of_the_built_in_catalog_has_the_documented_fields",
    "removal fails closed on what is configured": "tests/cli/test_cli_models_offline.py::test_remove_fails_closed_on_a_configured_artifact",
    "and on what runs or stands in the daemon's map": "tests/cli/test_cli_models_daemon.py::test_remove_asks_the_daemon_over_the_same_cache",
    "and while another process leases it": "tests/cli/test_cli_models_offline.py::test_remove_fails_closed_while_another_process_leases_it",
    "prune counts first and takes only orphans": "tests/artifacts/test_artifacts_store.py::test_prune_reports_first_and_takes_orphans_then",
    "prune leaves a pull at work alone": "tests/artifacts/test_artifacts_store.py::test_prune_leaves_young_partials_and_running_pulls",
    "prune and a pull that begins exclude each other": "tests/artifacts/test_artifacts_store.py::test_a_pull_that_begins_while_a_prune_is_at_work_keeps_its_folder",
    "two models that share a file store it once": "tests/artifacts/test_artifacts_fetch.py::test_a_shared_blob_is_fetched_once",
    "and it survives until its last reference goes": "tests/artifacts/test_artifacts_store.py::test_removal_reclaims_only_what_nothing_else_needs",
    "no control byte reaches stdout": "tests/cli/test_cli_output.py::test_json_is_one_object_without_control_bytes",
    "hostile catalog texts neither": "tests/cli/test_cli_models_offline.py::test_hostile_catalog_text_does_not_reach_the_terminal",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """One deployment, one further model that the catalog wants at every start, and one that nobody wants."""
    catalog = tiny_catalog(tmp_path)
    eager = catalog_model(tmp_path, "eager").replace('{"params"', '{"pull": "on_boot", "params"')
    catalog.write_text(catalog.read_text() + eager + catalog_model(tmp_path, "spare"))
    path = tmp_path / "sb.yml"
    path.write_text(
        f"proxy:\n  model_host:\n    catalog_file: catalog.yml\n    cache: {{directory: {tmp_path}/cache}}\n"
        "    deployments:\n      tiny: {model: tiny-model}\n"
    )
    return path


def body(ran: Ran, command: str) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    answer: dict[str, Any] = json.loads(ran.out)
    assert (answer["schema_version"], answer["command"]) == (1, command)
    return answer


def test_a_pull_of_a_file_takes_its_deployments_and_the_catalogs_eager_models(config: Path) -> None:
    """Every configured deployment, and what the catalog marks on_boot; nothing else."""
    pulled = body(sbproxy("models", "pull", "-f", str(config), "--format", "json"), "models.pull")
    assert [each["model"] for each in pulled["artifacts"]] == ["tiny-model", "eager"]
    assert all(each["job_id"] for each in pulled["artifacts"])


def test_progress_is_on_stderr_and_stdout_is_one_json_object(config: Path) -> None:
    """As a real process: stdout has neither colour nor carriage returns, and progress does not get into it."""
    ran = subprocess.run(
        [sys.executable, "-m", "sbproxy_cli", "models", "pull", "tiny-model", "--variant", "q4", "-f", str(config), "--format", "json"],
        capture_output=True, timeout=60, check=False, env=environment(),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert not {byte for byte in ran.stdout if byte < 0x20} - {0x0A}
    assert json.loads(ran.stdout)["command"] == "models.pull"
    assert b"tiny-model:q4: " in ran.stderr
    assert b"4100 bytes" in ran.stderr


def test_each_json_command_says_which_it_is(config: Path) -> None:
    """One envelope version and a stable name for each verb; a mutation names its durable job."""
    place = ("-f", str(config), "--format", "json")
    pulled = body(sbproxy("models", "pull", "spare", *place), "models.pull")
    assert pulled["artifacts"][0]["job_id"]
    body(sbproxy("models", "list", *place), "models.list")
    assert body(sbproxy("models", "show", "spare", *place), "models.show")["cached"] is True
    removed = body(sbproxy("models", "remove", "spare", "--variant", "only", *place), "models.remove")
    assert removed["removed"] is True
    assert removed["job_id"]
    again = body(sbproxy("models", "remove", "spare", "--variant", "only", *place), "models.remove")
    assert (again["removed"], again["job_id"]) == (False, None)
    body(sbproxy("models", "prune", "--dry-run", *place), "models.prune")
    body(sbproxy("models", "prune", *place), "models.prune")


def test_prune_reclaims_what_an_interrupted_pull_left_and_nothing_that_is_referenced(
    config: Path, tmp_path: Path
) -> None:
    """A dry run only counts."""
    assert sbproxy("models", "pull", "tiny-model", "-f", str(config)).code == 0
    blobs = tmp_path / "cache" / "blobs" / "sha256"
    (kept,) = list(blobs.iterdir())
    orphan = blobs / ("a" * 64)
    orphan.write_bytes(b"x" * 321)
    place = ("--cache-dir", str(tmp_path / "cache"), "--format", "json")
    counted = body(sbproxy("models", "prune", "--dry-run", *place), "models.prune")
    assert orphan.exists()
    taken = body(sbproxy("models", "prune", *place), "models.prune")
    assert (counted["dry_run"], counted["orphan_blobs"], counted["reclaimed_bytes"]) == (True, 1, 321)
    assert (taken["dry_run"], taken["orphan_blobs"], taken["reclaimed_bytes"]) == (False, 1, 321)
    assert list(blobs.iterdir()) == [kept]
