"""`validate`, `config print|schema`, `serve --check` and `doctor` on configurations good and bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli import sbproxy
from support.daemon import tiny_catalog

GOOD = """\
proxy:
  bind_address: 127.0.0.1
  admin: {enabled: true, password: "${SB_ADMIN_PASSWORD}"}
  model_host:
    cache: {directory: DIR/cache}
    deployments:
      starter: {model: smollm2-135m-instruct}
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - {name: local, provider_type: managed_model, deployment: starter}
        - {name: far, base_url: "https://api.example.com/v1", api_key: sk-live-0123456789}
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "sb.yml"
    path.write_text(GOOD.replace("DIR", str(tmp_path)))
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yml"
    text = GOOD.replace("DIR", str(tmp_path)).replace("bind_address", "bind_adress")
    path.write_text(text)
    return path


def test_validate(good: Path) -> None:
    ran = sbproxy("validate", str(good))
    assert (ran.code, ran.out) == (0, f"ok: {good} is a valid sbproxy config\n")
    assert sbproxy("validate", "-f", str(good)).code == 0
    assert sbproxy("validate", env={"SB_CONFIG_FILE": str(good)}).code == 0
    assert json.loads(sbproxy("validate", str(good), "--format", "json").out) == {"path": str(good), "valid": True}


def test_check_validates_and_starts_nothing(good: Path) -> None:
    assert sbproxy("--check", str(good)).out.startswith("ok: ")
    assert sbproxy("serve", str(good), "--check").out.startswith("ok: ")


def test_two_different_configurations_are_a_contradiction(good: Path, bad: Path) -> None:
    assert sbproxy("validate", str(good), "-f", str(bad)).code == 2
    # A positional wins over the environment, which is not on the line.
    assert sbproxy("validate", str(good), env={"SB_CONFIG_FILE": str(bad)}).code == 0


def test_validate_names_what_is_wrong(bad: Path) -> None:
    ran = sbproxy("validate", str(bad))
    assert (ran.code, ran.out) == (2, "")
    assert f"{bad}:2" in ran.err
    assert "bind_address" in ran.err
    answer = json.loads(sbproxy("validate", str(bad), "--format", "json").out)
    assert (answer["path"], answer["valid"]) == (str(bad), False)
    assert answer["error"]
    assert answer["problems"][0]["line"] == 2
    assert answer["problems"][0]["near"] == "bind_address"


def test_validate_checks_names_against_the_catalog(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    path = tmp_path / "sb.yml"
    path.write_text(
        "proxy:\n  model_host:\n    catalog_file: catalog.yml\n    deployments:\n      a: {model: tiny-modle}\n"
        "      b: {model: tiny-model, variant: q8}\n"
    )
    ran = sbproxy("validate", str(path))
    assert ran.code == 2
    assert "sb.yml:5" in ran.err
    assert "tiny-model" in ran.err
    assert "sb.yml:6" in ran.err


def test_validate_tells_a_catalog_that_is_not_there_with_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "sb.yml"
    path.write_text("proxy:\n  prt: 1\n  model_host:\n    catalog_file: none.yml\n")
    answer = json.loads(sbproxy("validate", str(path), "--format", "json").out)
    assert answer["code"] == "config_invalid"
    assert [(each["line"], each["path"]) for each in answer["problems"]] == [
        (2, "proxy.prt"),
        (4, "proxy.model_host.catalog_file"),
    ]
    (tmp_path / "none.yml").write_text("schema_version: 2\nmodels: {}\n")
    (own, foreign) = json.loads(sbproxy("validate", str(path), "--format", "json").out)["problems"]
    assert (own["file"], own["path"]) == (str(path), "proxy.prt")
    assert (foreign["file"], foreign["path"]) == (str(tmp_path / "none.yml"), "catalog_revision")


def test_validate_a_missing_file() -> None:
    ran = sbproxy("validate", "/nowhere/sb.yml")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "sbproxy validate: /nowhere/sb.yml: there is no such file\n"
    assert json.loads(sbproxy("validate", "/nowhere/sb.yml", "--format", "json").out)["valid"] is False


def test_print_masks_literals_and_keeps_references(good: Path) -> None:
    for form in ((), ("--json",)):
        ran = sbproxy("config", "print", str(good), *form)
        assert ran.code == 0
        assert "sk-live-0123456789" not in ran.out
        assert "***MASKED***" in ran.out
        assert "${SB_ADMIN_PASSWORD}" in ran.out
    document = json.loads(sbproxy("config", "print", str(good), "--json").out)
    assert document["proxy"]["http_bind_port"] == 8080


def test_what_is_printed_loads_again(good: Path, tmp_path: Path) -> None:
    good.write_text(good.read_text().replace("sk-live-0123456789", "${FAR_KEY}"))
    again = tmp_path / "again.yml"
    again.write_text(sbproxy("config", "print", str(good)).out)
    assert sbproxy("validate", str(again)).code == 0


def test_schema_is_a_json_schema() -> None:
    schema = json.loads(sbproxy("config", "schema").out)
    assert schema["$schema"].endswith("2020-12/schema")
    assert "proxy" in schema["properties"]


SECTION_10 = [
    "schema_version", "command",
    "host", "features", "extensions", "gpus", "drivers", "nvidia_smi", "engines", "container_runtime", "containers",
    "package_managers", "git", "python", "huggingface", "model_cache_dir", "model_cache_exists",
    "model_cache_free_bytes", "shared_memory", "serve_entries", "cache_budget_check", "serve_demand", "local_serving",
    "foreign_model_caches",
]  # fmt: skip
HUB = {"HF_ENDPOINT": "http://127.0.0.1:9"}


def test_doctor_has_the_fields_of_section_10(good: Path) -> None:
    ran = sbproxy("doctor", str(good), "--format", "json", env=HUB)
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert sorted(report) == sorted(SECTION_10)
    assert list(report["features"]) == [
        "gpu_nvidia", "gpu_apple", "model_weights", "tls_fingerprint", "inprocess_embed", "agent_class",
    ]  # fmt: skip
    assert report["extensions"]["scope"]["mode"] == "doctor"
    # Nothing is asked of the network unless somebody says so.
    hub = {"endpoint": "http://127.0.0.1:9", "token_present": False}
    assert report["huggingface"] == {
        **hub,
        "reachable": None,
        "reason": "not asked; doctor --online tries a connection",
    }
    asked = json.loads(sbproxy("doctor", str(good), "--format", "json", "--online", env=HUB).out)["huggingface"]
    assert asked == {**hub, "reachable": False, "reason": "Connection refused"}
    assert report["engines"][0]["engine"] == "llama_cpp"
    assert {"method", "available", "detail"} == set(report["engines"][0]["acquisition"][0])
    (entry,) = report["serve_entries"]
    assert (entry["model"], entry["engine"], entry["runnable"]) == ("smollm2-135m-instruct", "llama_cpp", True)
    assert set(entry["fit"]) == {"verdict", "detail", "estimated_vram_gib", "quant"}
    assert report["local_serving"]["ready"] is True
    assert report["model_cache_dir"] == str(good.parent / "cache")


def test_doctor_text_has_its_blocks_in_order(good: Path) -> None:
    ran = sbproxy("doctor", env={**HUB, "SB_CONFIG_FILE": str(good), "HF_TOKEN": "hf_very_secret"})
    assert ran.code == 0
    heads = [line for line in ran.out.splitlines() if not line.startswith(" ")]
    assert heads == [
        "host", "build capabilities", "extensions", "devices", "drivers", "engines", "containers", "cache", "verdict",
    ]  # fmt: skip
    assert "hf_very_secret" not in ran.out
    assert "a token is set" in ran.out


def test_doctor_blames_only_engines_that_are_asked_for(good: Path, tmp_path: Path) -> None:
    text = good.read_text()
    block = "  model_host:\n    engines: {llama_cpp: {path: /nowhere/llama-server}}\n"
    good.write_text(text[: text.index("  model_host:")] + block)
    serving = json.loads(sbproxy("doctor", str(good), "--format", "json", env=HUB).out)["local_serving"]
    assert serving["ready"] is False
    (blocker,) = serving["blockers"]
    assert blocker.startswith("llama_cpp: ")


def test_doctor_sees_an_unsafe_argument(good: Path) -> None:
    good.write_text(good.read_text().replace("smollm2-135m-instruct", "smollm2-135m-instruct, extra_args: [--host, x]"))
    report = json.loads(sbproxy("doctor", str(good), "--format", "json", env=HUB).out)
    (entry,) = report["serve_entries"]
    assert (entry["engine"], entry["runnable"]) == ("llama_cpp", False)
    assert entry["blocker"].startswith("extra_args[0]: '--host' is not allowed")
    assert report["local_serving"]["ready"] is False


def test_doctor_exit_codes(good: Path, bad: Path) -> None:
    assert sbproxy("doctor", env=HUB).code == 0
    assert sbproxy("doctor", str(bad), env=HUB).code == 2
    assert sbproxy("doctor", "/nowhere/sb.yml", env=HUB).code == 2
    good.write_text(good.read_text().replace("smollm2-135m-instruct", "qwen2.5-0.5b-instruct, variant: bf16"))
    ran = sbproxy("doctor", str(good), env=HUB)
    assert ran.code == 1
    assert "blocker: qwen2.5-0.5b-instruct:bf16" in ran.out
