# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Canonical configuration": the file-managed form, and identity apart from public names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import fake_engine
from support.cli import sbproxy
from support.daemon import PASSWORD, Daemon
from support.document_world import HOST, admin

pytestmark = pytest.mark.e2e

PROVED_ELSEWHERE = {
    "the runnable example starts and answers": "tests/e2e/test_examples.py::test_model_host_managed",
    "the editor's schema is the one that is checked": "tests/config/test_config_printed.py::test_the_schema_in_docs_is_that_of_the_types",
    "every example in the documentation loads": "tests/docs/test_docs_are_true.py::test_configurations_in_the_docs_load",
}
NOT_ON_ONE_MACHINE = {
    "the cluster block, its roles, addresses and security": "cluster",
    "enrolment and certificates of an operator's own": "cluster",
}

DEPLOYMENT = {
    "variant": "q4", "replicas": 1, "pull": "on_boot", "warm": True, "keep_alive_secs": 1800, "max_concurrency": 4,
    "max_queue_depth": 32, "queue_timeout_ms": 30_000, "engine": "auto", "rollout": "recreate",
}  # fmt: skip
CONFIG = f"""
proxy:
  http_bind_port: {{port}}
  bind_address: 127.0.0.1
  admin: {{enabled: true, bind: 127.0.0.1, port: {{admin_port}}, username: admin, password: "${{SB_ADMIN_PASSWORD}}"}}
  model_host:
    authority: file_managed
    catalog_file: catalog.yml
    max_parallel_prepares: 1
    safety_margin: 0.10
    shutdown_deadline_ms: 30000
    cache: {{directory: "{{dir}}/cache", budget_gib: 100, max_resident_models: 2}}
    engines:
      llama_cpp: {{path: "{{dir}}/llama-server", acceleration: auto}}
      vllm: {{launch: uv, version: 0.10.0, acceleration: auto}}
    deployments:
      local-tiny: {json.dumps({"model": "tiny-model", **DEPLOYMENT})}
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - name: local
          provider_type: managed_model
          deployment: local-tiny
          models: [qwen]
          default_model: qwen
  other.example:
    action:
      type: ai_proxy
      providers:
        - {{name: local, provider_type: managed_model, deployment: local-tiny, models: [assistant]}}
"""


def documents_example() -> dict[str, Any]:
    """The smallest useful file, with the page's own values."""
    provider = {"name": "local", "provider_type": "managed_model", "deployment": "local-qwen", "models": ["qwen"],
                "default_model": "qwen"}  # fmt: skip
    return {
        "proxy": {
            "http_bind_port": 8080,
            "admin": {"enabled": True, "bind": "127.0.0.1", "port": 9090, "username": "admin",
                      "password": "${SB_ADMIN_PASSWORD}"},
            "model_host": {
                "authority": "file_managed", "max_parallel_prepares": 1, "safety_margin": 0.10,
                "shutdown_deadline_ms": 30_000,
                "cache": {"directory": "/var/lib/sbproxy/models", "budget_gib": 100, "max_resident_models": 2},
                "engines": {
                    "llama_cpp": {"launch": "binary", "version": "b9905", "acceleration": "auto"},
                    "vllm": {"launch": "uv", "version": "0.10.0", "acceleration": "auto"},
                },
                "deployments": {
                    "local-qwen": {"model": "qwen2.5-0.5b-instruct", **DEPLOYMENT, "variant": "q4_k_m"},
                },
            },
        },
        "origins": {"localhost": {"action": {"type": "ai_proxy", "providers": [provider]}}},
    }  # fmt: skip


def test_the_smallest_useful_file_is_valid(tmp_path: Path) -> None:
    """The page's file-managed deployment is accepted as it stands, built-in catalog included."""
    path = tmp_path / "sb.yml"
    path.write_text(yaml.safe_dump(documents_example()))
    ran = sbproxy("validate", str(path), env={"SB_ADMIN_PASSWORD": PASSWORD})
    assert (ran.code, ran.err) == (0, "")


def test_every_setting_of_the_deployment_is_what_runs(served: Daemon) -> None:
    """All fields of the example take effect; the engine is up before the first request."""
    shown = admin(served, "GET", f"{HOST}/deployments").json()["deployments"]["local-tiny"]
    assert {key: shown[key] for key in DEPLOYMENT} == DEPLOYMENT
    row = served.status_row("local-tiny")
    assert (row["state"], row["variant"], row["engine"]) == ("ready", "q4", "llama_cpp")
    assert (row["keep_alive_secs"], row["max_concurrency"], row["max_queue_depth"]) == (1800, 4, 32)
    (engine,) = fake_engine.instances(served.directory)
    assert engine.argv[engine.argv.index("--parallel") + 1] == "4"


def test_clients_see_the_public_name_and_not_the_deployments(served: Daemon) -> None:
    """The deployment's id is the operator's; requests, answers and lists carry the provider's model name."""
    answer = served.chat("qwen")
    assert (answer.status, answer.json()["model"]) == (200, "qwen")
    assert served.chat("local-tiny").status == 404
    assert [each["id"] for each in served.ask("GET", "/v1/models").json()["data"]] == ["qwen"]


def test_two_origins_share_one_engine_under_two_names(served: Daemon) -> None:
    """A second origin that shows another name for the same deployment starts no second process."""
    body = {"model": "assistant", "messages": [{"role": "user", "content": "x"}]}
    answer = served.ask("POST", "/v1/chat/completions", body, host="other.example")
    assert (answer.status, answer.json()["model"]) == (200, "assistant")
    assert served.ask("POST", "/v1/chat/completions", {**body, "model": "qwen"}, host="other.example").status == 404
    assert len(fake_engine.instances(served.directory)) == 1
