"""A `serve:` block end to end: routes, one engine over origins, migration without a restart, raw references."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import fake_engine, real_parts
from support.daemon import Daemon, daemon, tiny_catalog
from support.repository_hub import RepositoryHub

pytestmark = pytest.mark.e2e

HEAD = """
proxy:
  http_bind_port: {port}
  bind_address: 127.0.0.1
  admin:
    enabled: true
    port: {admin_port}
    password: "${SB_ADMIN_PASSWORD}"
origins:
"""
HOST = 'catalog_file: catalog.yml, cache_dir: "{dir}/cache", engines: {llama_cpp: {path: "{dir}/llama-server"}}'


def origin(name: str, *models: str, host: str = HOST) -> str:
    return (
        f"  {name}:\n    action:\n      type: ai_proxy\n      providers:\n"
        f"        - name: local\n          serve: {{{host}, models: [{', '.join(models)}]}}\n"
    )


TINY = "{model: tiny-model, name: tiny, keep_alive: 30m}"


def rows(served: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = served.ask("GET", "/admin/model-host/status", admin=True).json()["deployments"]
    return found


def sbproxy(served: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sbproxy_cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=served.environ,
        check=False,
    )


def test_two_origins_with_one_declaration_share_one_engine(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(
        tmp_path, HEAD + origin("localhost", TINY) + origin("other.example", TINY, host="eviction: lru")
    ) as served:
        served.start()
        assert served.chat("tiny").status == 200
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
        assert served.ask("POST", "/v1/chat/completions", body, host="other.example").status == 200
        (row,) = rows(served)
        assert row["deployment"].startswith("serve-")
        assert row["keep_alive_secs"] == 1800
        assert len(fake_engine.instances(tmp_path)) == 1
        assert [each["id"] for each in served.ask("GET", "/v1/models").json()["data"]] == ["tiny"]


def test_each_model_of_a_block_is_routed_to_its_own_deployment(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    second = "{model: tiny-model, name: second, max_context: 256}"
    with daemon(tmp_path, HEAD + origin("localhost", TINY, second)) as served:
        served.start()
        for name in ("tiny", "second"):
            answer = served.chat(name)
            assert answer.status == 200, answer.body
            assert answer.json()["model"] == name
        assert served.chat("tiny-model").status == 404
        assert len(fake_engine.instances(tmp_path)) == 2


def test_the_printed_document_is_the_migration_and_restarts_nothing(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, HEAD + origin("localhost", TINY)) as served:
        served.start()
        assert served.chat("tiny").status == 200
        (before,), (engine,) = rows(served), fake_engine.instances(tmp_path)
        printed = sbproxy(served, "config", "print", str(served.config))
        assert printed.returncode == 0, printed.stderr
        assert f"# {before['deployment']} is from origins.localhost" in printed.stdout
        assert "serve: null" in printed.stdout
        served.config.write_text(printed.stdout)
        validated = sbproxy(served, "validate", str(served.config))
        assert (validated.returncode, validated.stderr) == (0, "")
        assert served.ask("POST", "/admin/reload", admin=True).status == 200
        (after,) = rows(served)
        assert (after["deployment"], after["generation"]) == (before["deployment"], before["generation"])
        assert [each.pid for each in fake_engine.instances(tmp_path)] == [engine.pid]
        assert served.chat("tiny").status == 200


def test_a_conflicting_reload_names_both_places_and_changes_nothing(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, HEAD + origin("localhost", TINY)) as served:
        served.start()
        assert served.chat("tiny").status == 200
        good = served.config.read_text()
        served.config.write_text(good + origin("other.example", TINY, host="cache_dir: /elsewhere"))
        answer = served.ask("POST", "/admin/reload", admin=True)
        assert answer.status == 400
        text = answer.body.decode()
        assert "other.example" in text
        assert "origins.localhost.action.providers[0].serve.cache_dir" in text
        assert served.chat("tiny").status == 200


@pytest.mark.real_engine
@pytest.mark.timeout(120)
def test_a_raw_file_runs_where_it_lies_with_a_warning(tmp_path: Path) -> None:
    model, program = real_parts.real_model_path(), real_parts.real_binary(tmp_path / "parts").program
    host = f'cache_dir: "{{dir}}/cache", engines: {{llama_cpp: {{path: "{program}"}}}}'
    entry = f"{{model: 'file:{model}', name: raw, max_context: 512}}"
    with daemon(tmp_path, HEAD + origin("localhost", entry, host=host)) as served:
        served.start()
        answer = served.chat("raw", content="The capital of France is", max_tokens=16, temperature=0)
        assert answer.status == 200, answer.body
        assert answer.json()["model"] == "raw"
        assert "raw reference" in served.log
        assert "no digest to check it against" in served.log
        assert not list((tmp_path / "cache").glob("blobs/**/*.*"))
        validated = sbproxy(served, "validate", str(served.config))
        assert validated.returncode == 0
        assert "warning: " in validated.stderr
        assert "no digest" in validated.stderr


@pytest.mark.real_engine
@pytest.mark.timeout(120)
def test_a_raw_repository_is_fetched_by_its_engine(tmp_path: Path) -> None:
    model, program = real_parts.real_model_path(), real_parts.real_binary(tmp_path / "parts").program
    host = f'cache_dir: "{{dir}}/cache", engines: {{llama_cpp: {{path: "{program}"}}}}'
    entry = "{model: 'hf:Org/Small-135M-GGUF:Q4_1', name: raw, max_context: 512}"
    with RepositoryHub({"Org/Small-135M-GGUF": {"small.Q4_1.gguf": model.read_bytes()}}) as hub:
        secrets = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "canary-token"}
        with daemon(tmp_path, HEAD + origin("localhost", entry, host=host), **secrets) as served:
            served.start()
            answer = served.chat("raw", content="The capital of France is", max_tokens=16, temperature=0)
            assert answer.status == 200, answer.body
            assert answer.json()["model"] == "raw"
            assert "access to the network" in served.log
    assert hub.files_asked()
    assert not any("canary-token" in str(headers) for _, headers in hub.asked)
    assert list((tmp_path / "cache" / "hf-home").rglob("small.Q4_1.gguf"))
