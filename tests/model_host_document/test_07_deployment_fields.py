# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Deployment fields"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import fake_engine
from support.cli import sbproxy
from support.daemon import FAKE_ENGINE_CONFIG, PASSWORD, Daemon, tiny_catalog
from support.document_world import (
    LAST_PROVIDER_LINE,
    TINY_DEPLOYMENT,
    act,
    catalog_model,
    cli,
    edit,
    managed,
    reload,
    rows,
)

pytestmark = pytest.mark.e2e

CONFIG = FAKE_ENGINE_CONFIG.replace(
    TINY_DEPLOYMENT,
    TINY_DEPLOYMENT
    + "      at-boot: {model: boot-model, pull: on_boot}\n"
    + "      by-hand: {model: hand-model, pull: manual}\n",
) + managed("by-hand", "by-hand", "by-hand")

PROVED_ELSEWHERE = {
    "fallback goes on to the next provider": "tests/gateway/test_gateway_statuses.py::test_a_cold_deployment_with_fallback_goes_to_the_next_provider",
    "the model must be an id of the catalog, and a variant one of its own": "tests/daemon/test_daemon_checks.py::test_names_that_the_catalog_lacks",
    "a pinned variant is the one that is taken": "tests/catalog/test_catalog_resolve.py::test_a_pin_is_exact",
    "without a pin the first compatible variant is taken": "tests/catalog/test_catalog_resolve.py::test_the_first_compatible_variant_in_the_catalogs_order",
    "warm starts the engine before the first request": "tests/e2e/test_process_recovery.py::test_a_warm_deployment_is_pulled_and_started_before_the_first_request",
    "after a warm failure the stored revision may stand although it does not run": "tests/e2e/test_admin_managed.py::test_an_engine_that_fails_after_the_write_is_told_and_mended",
    "cold_start wait launches once and holds callers within the bounds": "tests/model_host_document/test_03_dispatch_and_cold_start.py::test_those_who_wait_share_one_start",
    "cold_start reject and fallback start nothing": "tests/model_host_document/test_03_dispatch_and_cold_start.py::test_reject_and_fallback_start_nothing",
    "a stored deployment must name its cold_start": "tests/modelhost/test_desired_document.py::test_a_missing_cold_start_says_what_to_write",
    "rolling starts the new generation before the old one drains": "tests/modelhost/test_modelhost_reload.py::test_rolling_starts_the_new_one_before_the_old_one_drains",
    "a rolling update under load fails nobody": "tests/e2e/test_model_host_real.py::test_a_rolling_update_between_two_quantizations_fails_nobody",
    "a rolling replacement that does not get ready leaves the old one serving": "tests/modelhost/test_modelhost_reload.py::test_rolling_that_fails_leaves_the_old_one_serving",
    "recreate drains before it starts": "tests/modelhost/test_modelhost_reload.py::test_recreate_drains_first_and_tells_requests_so",
    "what has no room is refused before anything durable or running changes": "tests/modelhost/test_modelhost_reload.py::test_what_can_never_fit_is_refused_before_anything_changes",
}
NOT_ON_ONE_MACHINE = {
    "several variants in one deployment": "cluster",
    "required_labels and spread_by place over workers": "cluster",
    "fences, cursors and projections of a cluster worker": "cluster",
}


def more_models(folder: Path) -> str:
    return catalog_model(folder, "boot-model") + catalog_model(folder, "hand-model")


@pytest.fixture
def good(served: Daemon) -> Iterator[Daemon]:
    """With the file as at the start, before and after."""
    text = served.config.read_text()
    yield served
    fake_engine.configure(served.directory)
    served.config.write_text(text)
    assert reload(served).status == 200


def test_on_boot_has_the_artifact_before_anybody_asks(served: Daemon) -> None:
    """Preparation verifies it; no engine is started for that."""
    assert served.status_row("at-boot")["state"] == "cached"
    assert served.status_row("at-boot")["port"] is None


def test_on_demand_waits_for_the_first_request(served: Daemon) -> None:
    """Nothing is fetched before, everything for it."""
    assert served.status_row()["state"] == "configured"
    assert served.chat().status == 200
    assert served.status_row()["state"] == "ready"


def test_manual_refuses_a_miss_until_the_command_has_pulled(served: Daemon) -> None:
    """Requests fetch nothing; the log names the command, and after it the next request is served."""
    answer = served.chat("by-hand")
    assert answer.status >= 500
    assert answer.json()["error"]["code"] == "manual_artifact_missing"
    assert "sbproxy models pull" in served.log
    assert served.status_row("by-hand")["state"] == "failed"
    pulled = cli(served, "models", "pull", "hand-model", "-f", str(served.config))
    assert pulled.code == 0, pulled.err
    assert served.chat("by-hand").status == 200


def test_a_warm_failure_keeps_the_candidate_from_becoming_active(good: Daemon) -> None:
    """What ran goes on, with its routes; the new deployment and its route are nowhere."""
    act(good, "load")
    before = good.status_row()
    fake_engine.configure(good.directory, mode="bad_file")
    edit(good, "      at-boot:", "      hot: {model: boot-model, warm: true}\n      at-boot:")
    edit(good, LAST_PROVIDER_LINE, LAST_PROVIDER_LINE + managed("hot", "hot", "hot"))
    answer = reload(good)
    assert (answer.status, answer.json()["code"]) == (500, "engine_launch_failed")
    assert "hot" not in [row["deployment"] for row in rows(good)]
    assert good.chat("hot").status == 404
    assert (good.status_row()["pid"], good.chat().status) == (before["pid"], 200)


def test_rolling_and_recreate_over_a_real_process(good: Daemon) -> None:
    """Both end with the new generation serving and one process; rolling is what silence means."""
    act(good, "load")
    for number, rollout in enumerate(("", ", rollout: recreate")):
        before = good.status_row()
        edit(good, TINY_DEPLOYMENT.strip(), TINY_DEPLOYMENT.strip()[:-1] + f", max_context: {128 + number}{rollout}}}")
        assert reload(good).status == 200
        assert good.chat().status == 200
        (after,) = [row for row in rows(good) if row["deployment"] == "tiny" and row["state"] == "ready"]
        assert after["generation"] > before["generation"]
        assert after["pid"] != before["pid"]
        edit(good, f", max_context: {128 + number}{rollout}}}", "}")
        assert reload(good).status == 200


def test_a_rolling_replacement_has_only_so_long_to_get_ready(good: Daemon) -> None:
    """Beyond handoff_timeout_ms the candidate is given up, its engine ended, and the old generation serves on."""
    act(good, "load")
    before, running = good.status_row(), {each.pid for each in fake_engine.instances(good.directory)}
    fake_engine.configure(good.directory, ready_after_probes=1_000_000)
    edit(good, "    shutdown_deadline_ms: 5000", "    handoff_timeout_ms: 800\n    shutdown_deadline_ms: 5000")
    edit(good, "max_concurrency: 4", "max_concurrency: 3")
    answer = reload(good)
    assert (answer.status, answer.json()["code"]) == (500, "handoff_timeout")
    assert "handoff_timeout_ms (800)" in answer.json()["error"]
    assert (good.status_row()["pid"], good.chat().status) == (before["pid"], 200)
    assert {each.pid for each in fake_engine.instances(good.directory)} <= running


REFUSED = [
    ("replicas: 2", "replicas", "needs a variant"),
    ("replicas: 2, heterogeneous_variants: true", "heterogeneous_variants", "is not supported by this version"),
    ("required_labels: {zone: a}", "required_labels", "is not supported by this version"),
    ("spread_by: [zone]", "spread_by", "is not supported by this version"),
    ("cold_start: sometimes", "cold_start", "is not one of the choices"),
    ("pull: later", "pull", "is not one of the choices"),
    ("rollout: blue_green", "rollout", "is not one of the choices"),
]


@pytest.mark.parametrize(("setting", "key", "reason"), REFUSED, ids=[each[0] for each in REFUSED])
def test_what_is_no_intent_of_one_machine_is_refused_by_name(
    tmp_path: Path, setting: str, key: str, reason: str
) -> None:
    """Several replicas need a pin; what concerns many nodes, and values that do not exist, are named with their place."""
    tiny_catalog(tmp_path)
    text = FAKE_ENGINE_CONFIG.replace("max_concurrency: 4, max_queue_depth: 64, queue_timeout_ms: 20000", setting)
    path = tmp_path / "sb.yml"
    path.write_text(text.replace("{port}", "8080").replace("{admin_port}", "9090").replace("{dir}", str(tmp_path)))
    ran = sbproxy("validate", str(path), env={"SB_ADMIN_PASSWORD": PASSWORD})
    assert ran.code != 0
    assert f"proxy.model_host.deployments.tiny.{key}" in ran.err
    assert reason in ran.err
