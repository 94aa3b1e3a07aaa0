# ruff: noqa: E501 - one row of a table is one line
"""Document 1, "Migrating from provider serve:"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cli import sbproxy
from support.daemon import tiny_catalog

PROVED_ELSEWHERE = {
    "equal declarations share one engine, under the public name": "tests/e2e/test_serve_block.py::test_two_origins_with_one_declaration_share_one_engine",
    "the id is deterministic": "tests/config/test_config_serve.py::test_the_id_is_a_digest_of_provider_name_and_entry",
    "equivalent declarations merge": "tests/config/test_config_serve.py::test_equivalent_entries_merge_over_origins_and_name_every_place",
    "conflicting host policies name both places": "tests/config/test_config_serve_policy.py::test_conflicting_host_policies_name_both_places",
    "one name for two models names both": "tests/config/test_config_serve.py::test_one_name_for_two_models_names_both",
    "a conflict rejects the whole candidate": "tests/e2e/test_serve_block.py::test_a_conflicting_reload_names_both_places_and_changes_nothing",
    "the page's two forms mean the same": "tests/config/test_config_serve.py::test_the_example_of_the_document_is_its_canonical_form",
    "the printed document is the migration, and restarts nothing": "tests/e2e/test_serve_block.py::test_the_printed_document_is_the_migration_and_restarts_nothing",
    "a setting that does not survive is refused by name": "tests/config/test_config_serve.py::test_a_setting_that_does_not_survive_is_refused_by_name",
    "raw references have no canonical form, and every load warns of them": "tests/config/test_config_serve.py::test_raw_references_are_warned_of_at_every_load_and_have_no_canonical_form",
}


def write(folder: Path, model_host: dict[str, Any], *providers: dict[str, Any]) -> str:
    tiny_catalog(folder)
    origins = {
        host: {"action": {"type": "ai_proxy", "providers": [provider]}}
        for host, provider in zip(("localhost", "other.example"), providers, strict=False)
    }
    path = folder / "sb.yml"
    path.write_text(
        yaml.safe_dump({"proxy": {"model_host": {"catalog_file": "catalog.yml", **model_host}}, "origins": origins})
    )
    return str(path)


def block(entry: dict[str, Any], **host: Any) -> dict[str, Any]:
    return {"name": "local", "serve": {"models": [{"model": "tiny-model", "name": "qwen", **entry}], **host}}


def test_the_two_forms_of_the_page_become_the_same_deployment(tmp_path: Path) -> None:
    """What a block lowers to differs from the hand-written deployment in its id alone."""
    old = {"variant": "q4", "engine": "llama_cpp", "keep_alive": "30m"}
    lowered = printed(write(tmp_path, {}, block(old, cache_dir="/var/lib/sbproxy/models")))
    new = {"model": "tiny-model", "variant": "q4", "engine": "llama_cpp", "keep_alive_secs": 1800}
    host = {"cache": {"directory": "/var/lib/sbproxy/models"}, "deployments": {"local-qwen": new}}
    provider = {"name": "local", "provider_type": "managed_model", "deployment": "local-qwen", "models": ["qwen"]}
    written = printed(write(tmp_path, host, provider))
    one, other = lowered["proxy"]["model_host"], written["proxy"]["model_host"]
    (from_block,), (by_hand,) = one.pop("deployments").values(), other.pop("deployments").values()
    assert (from_block, one) == (by_hand, other)
    routed = [each["origins"]["localhost"]["action"]["providers"][0] for each in (lowered, written)]
    assert [(each["provider_type"], each["models"]) for each in routed] == [("managed_model", ["qwen"])] * 2


def printed(path: str) -> dict[str, Any]:
    ran = sbproxy("config", "print", path)
    assert ran.code == 0, ran.err
    document: dict[str, Any] = yaml.safe_load(ran.out)
    return document


def test_lowering_is_the_same_every_time(tmp_path: Path) -> None:
    """The deployment's id depends on what is written and on nothing else."""
    path = write(tmp_path, {}, block({}), block({}))
    first, second = printed(path), printed(path)
    assert first == second
    assert len(first["proxy"]["model_host"]["deployments"]) == 1


CONFLICTS = [
    ({"cache_dir": "/a"}, {"cache_dir": "/b"}, "cache_dir"),
    ({"eviction": "lru"}, {"eviction": "never"}, "eviction"),
    ({"cache_budget_gib": 1}, {"cache_budget_gib": 2}, "cache_budget_gib"),
    ({"engines": {"llama_cpp": {"path": "/x"}}}, {"engines": {"llama_cpp": {"path": "/y"}}}, "engines"),
]


@pytest.mark.parametrize(("one", "other", "key"), CONFLICTS, ids=[each[2] for each in CONFLICTS])
def test_conflicting_policies_reject_the_candidate(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], key: str
) -> None:
    """Neither origin wins; both places are named."""
    ran = sbproxy("validate", write(tmp_path, {}, block({}, **one), block({}, **other)))
    assert ran.code != 0
    assert f"origins.localhost.action.providers[0].serve.{key}" in ran.err
    assert "other.example" in ran.err


GONE = [
    ("speculative", {"method": "ngram"}),
    ("lora_adapters", [{"name": "a", "source": "b"}]),
    ("max_loras", 2),
    ("chunked_prefill", {}),
    ("gguf_file", "a.gguf"),
    ("gpu_memory_utilization", 0.9),
    ("max_num_seqs", 2),
    ("dtype", "bfloat16"),
]


@pytest.mark.parametrize(("key", "setting"), GONE, ids=[each[0] for each in GONE])
def test_no_unsupported_field_survives_in_silence(tmp_path: Path, key: str, setting: Any) -> None:
    """Each is refused with its place and what to do."""
    ran = sbproxy("validate", write(tmp_path, {}, block({key: setting})))
    assert ran.code != 0
    assert f"serve.models[0].{key}" in ran.err


@pytest.mark.parametrize("key", ["gguf_file", "keep_alive", "speculative", "lora_adapters"])
def test_the_canonical_form_has_no_place_for_them(tmp_path: Path, key: str) -> None:
    """Nor does a raw reference name a model there."""
    deployment = {"model": "tiny-model", key: "x"}
    ran = sbproxy("validate", write(tmp_path, {"deployments": {"tiny": deployment}}))
    assert ran.code != 0
    assert f"deployments.tiny.{key}" in ran.err
    raw = sbproxy("validate", write(tmp_path, {"deployments": {"tiny": {"model": "hf:Org/Repo"}}}))
    assert raw.code != 0
    assert "deployments.tiny.model" in raw.err
