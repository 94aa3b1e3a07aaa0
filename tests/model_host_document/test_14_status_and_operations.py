# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Status and operations"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import fake_engine
from support.cli import sbproxy
from support.daemon import FAKE_ENGINE_CONFIG, PASSWORD, Daemon, tiny_catalog
from support.document_world import HOST, act, admin, cli, cli_json, ended, until

pytestmark = pytest.mark.e2e

CONFIG = FAKE_ENGINE_CONFIG

PROVED_ELSEWHERE = {
    "models ps as text and as JSON, for an operator who may only read too": "tests/cli/test_cli_models_daemon.py::test_ps",
    "models load follows its job": "tests/cli/test_cli_models_daemon.py::test_load_waits_for_its_job",
    "addresses that are not allowed are refused before credentials are read": "tests/admin/test_admin_gate.py::test_addresses_that_are_not_allowed_are_refused_before_credentials_are_read",
    "the admin listener speaks TLS": "tests/admin/test_admin_listener.py::test_tls",
    "bad bodies of lifecycle actions": "tests/admin/test_admin_model_host.py::test_bad_bodies",
    "the cache as one node of a fleet": "tests/admin/test_admin_artifacts.py::test_the_cache_as_the_only_node_of_a_fleet",
    "an unknown utilisation stays absent, and occupancy is another series": "tests/observe/test_observe_metrics.py::test_host_counters_and_gauges",
    "labels are bounded": "tests/observe/test_observe_metrics.py::test_combinations_are_bounded_and_no_request_is_lost",
    "the last error is bounded and scrubbed": "tests/admin/test_admin_model_host.py::test_errors_of_other_programs_are_scrubbed_and_masked",
    "the older body field model still names a deployment": "tests/admin/test_admin_model_host.py::test_the_older_key_still_names_a_deployment",
}
NOT_ON_ONE_MACHINE = {
    "cluster status, roster, tombstones, placement and rollout rows": "cluster",
    "the cluster page": "M4",
    "failovers and peer dispatch in the metrics": "cluster",
    "GPU memory, utilisation and occupancy of a real card": "GPU",
}

ROUTES = [
    ("GET", f"{HOST}/catalog", 200),
    ("GET", f"{HOST}/deployments", 200),
    ("PUT", f"{HOST}/deployments", 403),
    ("GET", f"{HOST}/status", 200),
    ("GET", f"{HOST}/files", 200),
    ("DELETE", f"{HOST}/artifacts/{'0' * 64}", 404),
    ("POST", f"{HOST}/gc", 409),
    ("POST", f"{HOST}/load", 202),
    ("POST", f"{HOST}/stop", 202),
    ("POST", f"{HOST}/drain", 202),
    ("POST", f"{HOST}/evict", 202),
    ("POST", f"{HOST}/reset", 409),
    ("GET", "/admin/cluster/artifacts", 200),
]


@pytest.mark.parametrize(("method", "path", "status"), ROUTES, ids=[f"{each[0]} {each[1]}" for each in ROUTES])
def test_every_route_of_the_page_is_there_and_wants_credentials(
    served: Daemon, method: str, path: str, status: int
) -> None:
    """Each answers as its state demands: a full map is not taken, nothing is cached, no budget is set, nothing has failed."""
    body = {"deployment": "tiny"} if path.rpartition("/")[2] in ("load", "stop", "drain", "evict", "reset") else None
    if method == "PUT":
        body = {"expected_revision": None, "deployments": {}}  # type: ignore[dict-item]
    assert served.ask(method, path, body, admin=True, auth=False).status == 401
    if path.endswith("/reset"):
        assert act(served, "load")["state"] == "ready"
    answer = admin(served, method, path, body)
    assert answer.status == status, answer.body
    if status == 202:
        assert ended(served, answer.json()["job_id"])["state"] == "ready"


def test_ps_tells_all_of_a_running_deployment(served: Daemon) -> None:
    """Generation, state, availability, artifact, devices, the whole estimate, port, counts, job and what went wrong."""
    assert served.chat().status == 200
    (row,) = cli_json(served, "models", "ps")["deployments"]
    (engine,) = fake_engine.instances(served.directory)
    assert (row["deployment"], row["state"], row["driver_availability"]) == ("tiny", "ready", "available")
    assert (row["port"], row["pid"]) == (engine.port, engine.pid)
    assert row["generation"] >= 1
    assert len(row["artifact_digest"]) == 64
    memory = row["memory"]
    terms = ("weight_bytes", "kv_bytes", "runtime_overhead_bytes", "safety_margin_bytes")
    assert memory["total_bytes"] == sum(memory[term] for term in terms) > 0
    assert memory["device_indexes"] == row["selected_devices"]
    assert (row["active_requests"], row["queued_requests"]) == (0, 0)
    assert (row["reason_code"], row["last_error"]) == (None, None)
    assert row["job_id"]


def test_ps_tells_why_a_deployment_is_down(served: Daemon) -> None:
    """The reason code and a bounded last error, without the machine's paths."""
    act(served, "stop")
    fake_engine.configure(served.directory, mode="bad_file")
    assert served.chat().status >= 500
    (row,) = cli_json(served, "models", "ps")["deployments"]
    assert (row["state"], row["reason_code"], row["port"]) == ("failed", "engine_unhealthy", None)
    assert row["last_error"].startswith("bad_file: ")
    assert len(row["last_error"]) < 2000
    assert str(served.directory) not in row["last_error"]
    fake_engine.configure(served.directory)
    assert cli(served, "models", "reset", "tiny").code == 0
    assert served.chat().status == 200


def test_stop_drains_and_stops_and_keeps_the_artifact(served: Daemon) -> None:
    """The command follows its job; the engine is gone, the verified files stay, and a later request starts from them."""
    assert served.chat().status == 200
    engine = served.status_row()
    stopped = cli_json(served, "models", "stop", "tiny")
    assert (stopped["command"], stopped["job"]["state"]) == ("models.stop", "ready")
    row = served.status_row()
    assert (row["state"], row["stop_cause"], row["pid"]) == ("stopped", "operator", None)
    assert not fake_engine.alive(engine["pid"])
    assert (served.directory / "cache" / "snapshots" / engine["artifact_digest"] / "tiny.gguf").is_file()
    pulls = [job for job in admin(served, "GET", f"{HOST}/jobs").json()["jobs"] if job["kind"] == "pull"]
    assert served.chat().status == 200
    after = [job for job in admin(served, "GET", f"{HOST}/jobs").json()["jobs"] if job["kind"] == "pull"]
    assert len(after) == len(pulls)


@pytest.mark.parametrize("action", ["stop", "drain", "evict"])
def test_stop_drain_and_evict_are_one_operation(served: Daemon, action: str) -> None:
    """Under each name, and with the older body field, the deployment ends up stopped by its operator."""
    assert served.chat().status == 200
    assert act(served, action, key="model")["state"] == "ready"
    row = served.status_row()
    assert (row["state"], row["stop_cause"]) == ("stopped", "operator")


def test_the_metrics_of_the_page(served: Daemon) -> None:
    """Active and queued requests, the state of each deployment, refusals and attempts; no label names a machine or a port."""
    act(served, "load")
    assert served.chat().status == 200
    act(served, "stop")
    fake_engine.configure(served.directory, mode="oom_exit")
    served.chat()
    served.chat()
    fake_engine.configure(served.directory)
    act(served, "reset")
    act(served, "load")
    port = served.status_row()["port"]
    until(
        lambda: (
            'sbproxy_model_host_deployment_state{deployment="tiny",engine="llama_cpp",state="ready"} 1.0'
            in metrics(served)
        )
    )
    text = metrics(served)
    assert 'sbproxy_model_host_active_requests{deployment="tiny"} 0.0' in text
    assert 'sbproxy_model_host_queued_requests{deployment="tiny"} 0.0' in text
    assert re.search(
        r'sbproxy_model_host_admission_rejections_total\{deployment="tiny",priority="standard",reason="engine_unhealthy"\} [1-9]',
        text,
    )
    assert re.search(r"sbproxy_managed_replica_attempts_total\{[^}]*outcome=[^}]*\} [1-9]", text)
    labels = [
        line
        for line in text.splitlines()
        if line.startswith(("sbproxy_model_host", "sbproxy_managed")) and str(port) in line.partition("}")[0]
    ]
    assert not labels


def metrics(handle: Daemon) -> str:
    answer = admin(handle, "GET", "/metrics")
    assert answer.status == 200
    return answer.body.decode()


def test_off_loopback_the_admin_listener_is_not_open_by_accident(tmp_path: Path) -> None:
    """A listener for everybody with the default password is refused; loopback is the default."""
    tiny_catalog(tmp_path)
    text = FAKE_ENGINE_CONFIG.replace("    enabled: true\n", "    enabled: true\n    bind: 0.0.0.0\n")
    text = text.replace('    password: "${SB_ADMIN_PASSWORD}"\n', "")
    path = tmp_path / "sb.yml"
    path.write_text(text.replace("{port}", "8080").replace("{admin_port}", "9090").replace("{dir}", str(tmp_path)))
    ran = sbproxy("validate", str(path), env={"SB_ADMIN_PASSWORD": PASSWORD})
    assert ran.code != 0
    assert "proxy.admin" in ran.err
    assert "password" in ran.err
