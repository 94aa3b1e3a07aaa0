"""The collection that ends a pull, what protects an artifact from removal, and other caches that seed a pull."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from sbproxy.artifacts.store import FileArtifactStore
from support.cli import Ran, sbproxy
from support.daemon import tiny_catalog


def body(ran: Ran) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    value: dict[str, Any] = json.loads(ran.out)
    return value


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two models of the same kind under a budget of 0.000005 GiB, which is 5368 bytes: one of them."""
    catalog = tiny_catalog(tmp_path)
    text = catalog.read_text()
    entry = text[text.index("  tiny-model:") :]
    weights = b"GGUF" + bytes([7]) * 4096
    (tmp_path / "other.gguf").write_bytes(weights)
    old = hashlib.sha256((tmp_path / "tiny.gguf").read_bytes()).hexdigest()
    other = entry.replace("tiny-model", "other").replace("tiny.gguf", "other.gguf")
    catalog.write_text(text + other.replace(old, hashlib.sha256(weights).hexdigest()))
    path = tmp_path / "sb.yml"
    path.write_text(
        "proxy:\n  model_host:\n    catalog_file: catalog.yml\n"
        f"    cache: {{directory: {tmp_path}/cache, budget_gib: 0.000005}}\n"
    )
    return path


def pull(config: Path, model: str) -> dict[str, Any]:
    return body(sbproxy("models", "pull", model, "-f", str(config), "--format", "json"))


def test_a_pull_ends_in_a_collection_to_the_budget(config: Path, tmp_path: Path) -> None:
    first = pull(config, "tiny-model")
    assert first["gc"] == {
        "before_bytes": 4100,
        "after_bytes": 4100,
        "reclaimed_bytes": 0,
        "deleted_artifacts": [],
        "skipped_artifacts": {},
        "budget_unsatisfied_bytes": 0,
    }
    second = pull(config, "other")
    assert second["gc"]["deleted_artifacts"] == [first["artifacts"][0]["artifact_digest"]]
    assert (second["gc"]["reclaimed_bytes"], second["gc"]["budget_unsatisfied_bytes"]) == (4100, 0)
    text = sbproxy("models", "pull", "tiny-model", "-f", str(config)).out
    assert "reclaimed to keep the budget, 1 unused artifacts removed" in text


def test_a_collection_spares_what_is_configured_leased_and_just_pulled(config: Path, tmp_path: Path) -> None:
    digest = pull(config, "tiny-model")["artifacts"][0]["artifact_digest"]
    with FileArtifactStore(tmp_path / "cache", environ={}).lease(digest):
        gc = pull(config, "other")["gc"]
    other = next(each for each in gc["skipped_artifacts"] if each != digest)
    assert gc["skipped_artifacts"] == {digest: "leased", other: "just_pulled"}
    assert gc["budget_unsatisfied_bytes"] == 8200 - 5368
    config.write_text(config.read_text() + "    deployments:\n      tiny: {model: tiny-model}\n")
    ran = sbproxy("models", "pull", "other", "-f", str(config), "--format", "json")
    assert body(ran)["gc"]["skipped_artifacts"] == {digest: "configured", other: "just_pulled"}
    assert "above its budget" in ran.err


def test_without_a_budget_there_is_no_report(config: Path) -> None:
    config.write_text(config.read_text().replace(", budget_gib: 0.000005", ""))
    assert "gc" not in pull(config, "tiny-model")


def store_map(config: Path, tmp_path: Path) -> None:
    """Hand the deployments to a store whose first revision holds tiny-model."""
    from sbproxy.modelhost.core.desired_document import RevisionDocument, parse_replacement
    from sbproxy.modelhost.desired_store import SqliteDesiredStore

    store = SqliteDesiredStore(tmp_path / "desired.sqlite3")
    store.create()
    asked = {"expected_revision": None, "deployments": {"tiny": {"model": "tiny-model", "cold_start": "wait"}}}
    replacement = parse_replacement(json.dumps(asked).encode())
    store.replace(None, RevisionDocument.of(1, "tiny-1", replacement.deployments))
    config.write_text(
        config.read_text() + f"    authority: admin_managed\n    store_path: {tmp_path}/desired.sqlite3\n"
    )


def test_a_pull_without_a_name_fetches_what_a_stored_map_configures(config: Path, tmp_path: Path) -> None:
    unnamed = ("models", "pull", "-f", str(config), "--format", "json")
    ran = sbproxy(*unnamed)
    assert body(ran)["artifacts"] == []
    assert "nothing is selected; the configuration has nothing to fetch" in ran.err
    store_map(config, tmp_path)
    assert [each["model"] for each in body(sbproxy(*unnamed))["artifacts"]] == ["tiny-model"]


def test_remove_of_what_a_stored_map_configures_is_refused(config: Path, tmp_path: Path) -> None:
    store_map(config, tmp_path)
    pull(config, "tiny-model")
    ran = sbproxy("models", "remove", "tiny-model", "-f", str(config))
    assert ran.code == 2
    assert "it is configured; take it out of the deployments first" in ran.err
    assert sbproxy("models", "remove", "other", "-f", str(config)).code == 0


def test_list_names_the_program_whose_cache_has_the_model(tmp_path: Path) -> None:
    catalog = tiny_catalog(tmp_path, "https://files.example/tiny/")
    weights = (tmp_path / "tiny.gguf").read_bytes()
    studio = tmp_path / "home" / ".lmstudio" / "models" / "some" / "model" / "tiny.gguf"
    studio.parent.mkdir(parents=True)
    studio.write_bytes(weights)
    env = {"HOME": str(tmp_path / "home")}
    place = ("--catalog-file", str(catalog), "--cache-dir", str(tmp_path / "cache"))
    listed = body(sbproxy("models", "list", *place, "--format", "json", env=env))
    assert listed["models"][0]["status"] == "not-pulled, importable from lm-studio"
    shown = body(sbproxy("models", "show", "tiny-model", *place, "--format", "json", env=env))
    assert shown["cached"] is False
    ran = sbproxy("models", "pull", "tiny-model", "--offline", *place, "--format", "json", env=env)
    assert body(ran)["artifacts"][0]["verified_bytes"] == len(weights)
    assert sbproxy("models", "list", *place, env=env).out.splitlines()[1].split()[-1] == "cached"
    assert studio.read_bytes() == weights
