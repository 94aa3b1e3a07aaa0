"""`sbproxy run` before and around the daemon: what it refuses, what it would start, what it leaves behind."""

from __future__ import annotations

import json
import re
import shlex
import socket
import stat
from pathlib import Path

import pytest
import yaml

from sbproxy.config.load import load_text
from sbproxy_cli.local_run.plan import RunPlan
from sbproxy_cli.local_run.ports import free_port
from sbproxy_cli.local_run.private_file import private_config
from support.cli import sbproxy

STARTER = "smollm2-135m-instruct"


def plan(**changes: object) -> RunPlan:
    fields: dict[str, object] = {
        "model": STARTER,
        "variant": "q4_1",
        "engine": "llama_cpp",
        "alias": "tiny",
        "port": 8080,
        "admin_port": 9191,
        "password": "ab" * 32,
    }
    return RunPlan(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["hf:Org/Repo", "Org/Repo", "m:q4", "hf:x"])
def test_references_beside_the_catalog_are_refused(model: str) -> None:
    ran = sbproxy("run", model)
    assert (ran.code, ran.out) == (2, "")
    assert "not a catalog id" in ran.err


def test_an_unknown_model_names_the_near_ones() -> None:
    ran = sbproxy("run", "smollm2-135m")
    assert (ran.code, ran.out) == (2, "")
    assert f"did you mean {STARTER}" in ran.err


def test_an_unknown_variant_lists_those_there_are() -> None:
    ran = sbproxy("run", STARTER, "--variant", "q8_0")
    assert ran.code == 2
    assert "q4_1" in ran.err


def test_an_accelerator_that_is_not_here() -> None:
    ran = sbproxy("run", STARTER, "--accel", "metal")
    assert ran.code == 2
    assert "--accel metal: this machine offers" in ran.err


@pytest.mark.parametrize(("flag", "purpose"), [("--port", "the model"), ("--admin-port", "the admin API")])
def test_both_ports_are_checked_before_anything_is_fetched(flag: str, purpose: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        other = ("--port", str(free_port(port))) if flag == "--admin-port" else ()
        ran = sbproxy("run", STARTER, flag, str(port), *other, "--cache-dir", str(cache))
    assert (ran.code, ran.out) == (1, "")
    assert f"port {port} on 127.0.0.1, wanted for {purpose}: in use" in ran.err
    assert flag in ran.err
    assert not cache.exists()


def test_a_dry_run_prints_a_configuration_that_loads() -> None:
    ran = sbproxy("run", STARTER, "--dry-run", "--port", "8123", "--name", "tiny", "--cache-dir", "/srv/models")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("# ")
    assert lines[1].startswith("# ")
    assert not lines[2].startswith("#")
    config = load_text(ran.out, path=Path("/nowhere/sb.yml"), environ={}).config
    proxy = config.proxy
    assert (proxy.bind_address, proxy.http_bind_port) == ("127.0.0.1", 8123)
    assert (proxy.admin.enabled, proxy.admin.bind, proxy.admin.username) == (True, "127.0.0.1", "admin")
    assert re.fullmatch(r"[0-9a-f]{64}", proxy.admin.password.get_secret_value())
    assert proxy.model_host.cache.directory == "/srv/models"
    (deployment,) = proxy.model_host.deployments.items()
    assert deployment[0] == "local"
    assert (deployment[1].model, deployment[1].variant) == (STARTER, "q4_1")
    assert (deployment[1].pull, deployment[1].warm) == ("on_boot", True)
    assert list(config.origins) == ["127.0.0.1", "localhost"]
    for origin in config.origins.values():
        (provider,) = origin.action.providers
        assert (provider.name, provider.provider_type, provider.deployment) == ("local", "managed_model", "local")
        assert (provider.models, provider.default_model) == (["tiny"], "tiny")


def test_each_run_has_its_own_password() -> None:
    passwords = {
        yaml.safe_load(sbproxy("run", STARTER, "--dry-run").out)["proxy"]["admin"]["password"] for _ in range(2)
    }
    assert len(passwords) == 2


def test_the_password_is_in_no_representation() -> None:
    assert "ab" * 32 not in repr(plan())


def test_the_banner_is_in_the_order_of_section_11() -> None:
    assert plan().banner() == [
        "tiny is ready on http://127.0.0.1:8080",
        "Admin: http://127.0.0.1:9191",
        "Admin username: admin",
        "Admin password: " + "ab" * 32,
        "export OPENAI_BASE_URL=http://127.0.0.1:8080/v1",
        "export OPENAI_API_KEY=local",
        (
            "Try: curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json'"
            ' -d \'{"model": "tiny", "messages": [{"role": "user",'
            ' "content": "Complete the sentence: The capital of France is"}]}\''
        ),
    ]


def test_the_curl_line_is_one_shell_command_whatever_the_name() -> None:
    words = shlex.split(plan(alias='it\'s $(x) "q"').banner()[-1].removeprefix("Try: "))
    assert words[0] == "curl"
    assert json.loads(words[-1])["model"] == 'it\'s $(x) "q"'


def test_the_readiness_check_asks_for_one_token() -> None:
    assert plan().probe() == (
        "/v1/chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1},
    )


def test_an_embedding_model_is_asked_for_an_embedding() -> None:
    path, body = plan(modality="embedding").probe()
    assert (path, body) == ("/v1/embeddings", {"model": "tiny", "input": "hello"})
    assert "/v1/embeddings" in plan(modality="embedding").banner()[-1]


def test_the_private_file_is_private_and_goes() -> None:
    with pytest.raises(RuntimeError), private_config(plan().document()) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert yaml.safe_load(path.read_text()) == plan().document()
        raise RuntimeError
    assert not path.parent.exists()
