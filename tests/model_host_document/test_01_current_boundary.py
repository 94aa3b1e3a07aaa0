# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Current boundary": the worker-local runtime as one system."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from support import fake_engine
from support.daemon import FAKE_ENGINE_CONFIG, Daemon
from support.document_world import cli, edit, reload

pytestmark = pytest.mark.e2e

CONFIG = FAKE_ENGINE_CONFIG

PROVED_ELSEWHERE = {
    "a model name means the first variant of the catalog that this machine can run": "tests/catalog/test_catalog_resolve.py::test_the_first_compatible_variant_in_the_catalogs_order",
    "an interrupted download goes on where it stopped": "tests/artifacts/test_artifacts_fetch.py::test_a_broken_transfer_continues_by_range_with_the_final_etag",
    "two processes that want one artifact fetch it once, under a lock": "tests/artifacts/test_artifacts_processes.py::test_two_pulls_at_once_fetch_once",
    "a download that is killed anywhere publishes a whole artifact or none": "tests/artifacts/test_artifacts_processes.py::test_killed_at_every_file_system_call_of_a_download",
    "every file is checked, and one wrong part publishes nothing": "tests/artifacts/test_artifacts_shards.py::test_one_wrong_part_publishes_none",
    "the llama.cpp driver takes no argument that replaces the verified file": "tests/engines/test_engine_argv.py::test_what_the_model_host_owns_is_refused",
    "nor do the vLLM and SGLang drivers": "tests/engines/test_engine_vllm_argv.py::test_what_the_model_host_owns_is_refused",
    "one owner of generations, memory, admission, keep-alive, drains and jobs leaks none of them": "tests/modelhost/test_modelhost_weather.py::test_storms_lose_nobody_and_leave_nothing",
    "a candidate that does not parse or validate is not published": "tests/e2e/test_reload.py::test_an_invalid_candidate_changes_nothing",
    "a candidate whose preparation fails is not published": "tests/modelhost/test_modelhost_reload.py::test_a_failed_prepare_changes_nothing_and_frees_the_next",
    "the command line pulls one exact artifact": "tests/cli/test_cli_models_offline.py::test_pull_publishes_records_a_job_and_is_idempotent",
    "the command line inspects and removes": "tests/cli/test_cli_models_offline.py::test_remove_and_prune",
    "the command line lists what runs and stops one": "tests/cli/test_cli_models_daemon.py::test_stop_without_waiting_and_reset",
    "the catalog and deployment routes want credentials": "tests/admin/test_admin_gate.py::test_protected_routes_want_credentials",
}
NOT_ON_ONE_MACHINE = {
    "one cluster handle, worker snapshots, directory, placement over nodes, dispatch to peers": "cluster",
    "a status that lists every member beside its alerts": "cluster",
    "drift of the desired map between nodes, and signed desired-state bundles": "cluster",
    "the HTTP/2 data plane between nodes": "cluster",
    "the page that edits the map and works the lifecycle": "M4",
}


def test_a_model_name_stands_for_exact_files(served: Daemon) -> None:
    """A catalog entry fixes revision, files, sizes, digests, format and what the machine must have."""
    catalog = served.directory / "catalog.yml"
    ran = cli(served, "models", "show", "tiny-model", "--catalog-file", str(catalog), "--format", "json")
    assert ran.code == 0, ran.err
    (variant,) = json.loads(ran.out)["variants"]
    data = (served.directory / "tiny.gguf").read_bytes()
    assert variant["revision"] == f"{1:040}"
    assert variant["files"] == [
        {"path": "tiny.gguf", "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    ]
    assert (variant["format"], variant["engines"]) == ("gguf", ["llama_cpp"])
    assert (variant["accelerators"], variant["min_memory_bytes"]) == (["cpu", "metal", "cuda"], 1)


def test_the_engine_is_given_the_verified_file_and_no_way_to_another(served: Daemon) -> None:
    """What the engine opens is the published snapshot of the exact artifact, and it runs offline."""
    assert served.chat().status == 200
    (engine,) = fake_engine.instances(served.directory)
    model = Path(engine.argv[engine.argv.index("--model") + 1])
    digest = served.status_row()["artifact_digest"]
    assert model == served.directory / "cache" / "snapshots" / digest / "tiny.gguf"
    assert model.read_bytes() == (served.directory / "tiny.gguf").read_bytes()
    assert "--offline" in engine.argv


@pytest.mark.parametrize("argument", ["--hf-repo", "--model", "--model-url", "-hf"])
def test_a_setting_cannot_point_the_engine_elsewhere(served: Daemon, argument: str) -> None:
    """Further arguments that would name another model are refused, and what runs is untouched."""
    good = served.config.read_text()
    before = served.status_row()
    edit(served, "max_queue_depth: 64", f"max_queue_depth: 64, extra_args: ['{argument}', 'org/other']")
    answer = reload(served)
    served.config.write_text(good)
    assert answer.status == 400
    assert argument in answer.json()["error"]
    after = served.status_row()
    assert (after["pid"], after["generation"]) == (before["pid"], before["generation"])
