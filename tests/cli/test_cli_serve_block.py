"""What the commands say of `serve:` blocks and of the raw references in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli import sbproxy
from support.daemon import tiny_catalog

REFERENCE = "hf:Org/Small-1B-GGUF:Q4_0"
PLACE = "origins.localhost.action.providers[0].serve.models[1]"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    catalog, path = tiny_catalog(tmp_path), tmp_path / "sb.yml"
    path.write_text(
        "origins:\n  localhost:\n    action:\n      type: ai_proxy\n      providers:\n        - name: local\n"
        f"          serve:\n            catalog_file: {catalog}\n            cache_dir: {tmp_path}/cache\n"
        "            allow_unpinned_refs: true\n            models:\n              - {model: tiny-model}\n"
        f"              - {{model: '{REFERENCE}', name: raw}}\n"
    )
    return path


def test_validate_accepts_it_and_warns_of_the_raw_reference(config: Path) -> None:
    ran = sbproxy("validate", str(config))
    assert (ran.code, ran.out) == (0, f"ok: {config} is a valid sbproxy config\n")
    assert f'warning: {config}:13: {PLACE}.model: "{REFERENCE}" is a raw reference' in ran.err
    assert "no digest to check the files against" in ran.err


def test_doctor_warns_too_and_names_the_unpinned_references(config: Path) -> None:
    ran = sbproxy("doctor", str(config), "--format", "json", env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    report = json.loads(ran.out)
    assert report["serve_demand"]["unpinned_refs"] == [REFERENCE]
    assert report["serve_demand"]["allow_unpinned_refs"] is True
    assert [each["reference"] for each in report["serve_entries"]] == ["tiny-model:q4", REFERENCE]
    assert "is a raw reference" in ran.err


def test_print_tells_where_deployments_are_from_in_both_forms(config: Path) -> None:
    as_yaml = sbproxy("config", "print", str(config))
    as_json = sbproxy("config", "print", str(config), "--json")
    names = list(json.loads(as_json.out)["proxy"]["model_host"]["deployments"])
    assert len(names) == 2
    for name in names:
        assert f"# {name} is from " in as_yaml.out
        assert f"{name} is from " in as_json.err
    assert as_yaml.err == ""


def test_pull_leaves_raw_references_to_their_engine(config: Path, tmp_path: Path) -> None:
    ran = sbproxy("models", "pull", "-f", str(config), "--format", "json")
    assert ran.code == 0, ran.err
    (pulled,) = json.loads(ran.out)["artifacts"]
    assert "tiny-model" in json.dumps(pulled)
    assert "a raw reference is used as it is and never enters the cache" in ran.err
    assert not (tmp_path / "cache" / "hf-home").exists()
