"""`models list|show|pull|remove|prune` on a real store and a real catalog file, without a daemon."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from sbproxy.modelhost.job_store import SqliteJobStore
from support.cli import Ran, sbproxy
from support.daemon import tiny_catalog
from support.snapshot import check_snapshot


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    return tiny_catalog(tmp_path)


@pytest.fixture
def config(tmp_path: Path, catalog: Path) -> Path:
    path = tmp_path / "sb.yml"
    path.write_text(
        f"proxy:\n  model_host:\n    catalog_file: catalog.yml\n    cache: {{directory: {tmp_path}/cache}}\n"
        "    deployments:\n      tiny: {model: tiny-model}\n"
    )
    return path


def body(ran: Ran) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    assert not {ord(char) for char in ran.out} & ({*range(0x20), 0x7F} - {0x0A})
    value: dict[str, Any] = json.loads(ran.out)
    assert value["schema_version"] == 1
    return value


def test_list_of_the_built_in_catalog_has_the_documented_fields(tmp_path: Path) -> None:
    listed = body(sbproxy("models", "list", "--format", "json", "--cache-dir", str(tmp_path)))
    assert listed["command"] == "models.list"
    starter = next(each for each in listed["models"] if each["id"] == "smollm2-135m-instruct")
    assert list(starter) == [
        "id", "params", "license", "family", "modality", "quants", "selected_variant", "format", "stability",
        "exact_size_bytes", "engine", "fit", "estimated_vram_gib", "status",
    ]  # fmt: skip
    assert starter["exact_size_bytes"] == 98362432
    assert starter["license"] == "apache-2.0"
    assert starter["status"] == "not-pulled"
    assert {each["fit"] for each in listed["models"]} <= {"fits", "too-large", "capability-refused", "unknown"}


def test_list_follows_the_cache(catalog: Path, tmp_path: Path) -> None:
    place = ("--catalog-file", str(catalog), "--cache-dir", str(tmp_path / "cache"))
    check_snapshot("cli/models-list.txt", sbproxy("models", "list", *place).out)
    assert sbproxy("models", "pull", "tiny-model", *place).code == 0
    pulled = sbproxy("models", "list", *place)
    assert pulled.out.splitlines()[1].split()[-1] == "cached"
    assert body(sbproxy("models", "show", "tiny-model", *place, "--format", "json"))["cached"] is True


def test_models_alone_lists() -> None:
    assert sbproxy("models").out.startswith("MODEL ")


def test_show(catalog: Path, tmp_path: Path) -> None:
    place = ("--catalog-file", str(catalog), "--cache-dir", str(tmp_path / "cache"))
    shown = sbproxy("models", "show", "tiny-model", *place).out.replace(str(tmp_path), "/models")
    check_snapshot("cli/models-show.txt", shown)
    fields = body(sbproxy("models", "show", "tiny-model", *place, "--format", "json"))
    assert list(fields) == [
        "schema_version", "command", "id", "catalog_revision", "hf_repo", "source", "revision", "sha256", "engine",
        "pull", "quants", "params", "license", "family", "modality", "context_length", "allow_pickle", "variants",
        "min_vram_hint_gib", "cached",
    ]  # fmt: skip


def test_an_unknown_model_names_the_near_ones() -> None:
    ran = sbproxy("models", "show", "smollm2-135m-instrct")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("sbproxy models show: there is no model 'smollm2-135m-instrct'")
    assert "did you mean smollm2-135m-instruct" in ran.err


def test_a_catalog_that_does_not_parse_loses_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "catalog.yml"
    broken.write_text("schema_version: 2\ncatalog_revision: x\nmodels: {a: {params: 1}}\n")
    ran = sbproxy("models", "list", "--catalog-file", str(broken))
    assert (ran.code, ran.out) == (2, "")
    assert "catalog.yml" in ran.err
    assert "license" in ran.err
    assert sbproxy("models", "list", "--catalog-file", str(tmp_path / "gone.yml")).code == 2


def test_pull_publishes_records_a_job_and_is_idempotent(catalog: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    line = ("models", "pull", "tiny-model", "--catalog-file", str(catalog), "--cache-dir", str(cache))
    ran = sbproxy(*line, "--format", "json")
    pulled = body(ran)
    assert pulled["command"] == "models.pull"
    (artifact,) = pulled["artifacts"]
    assert list(artifact) == [
        "model", "variant", "engine", "artifact_digest", "snapshot_path", "verified_bytes", "job_id",
    ]  # fmt: skip
    assert (Path(artifact["snapshot_path"]) / "tiny.gguf").stat().st_size == artifact["verified_bytes"] == 4100
    assert "tiny-model:q4: " in ran.err
    assert "/ 4100 bytes (" in ran.err
    store = SqliteJobStore(cache / "jobs" / "jobs.sqlite3")
    (job,) = store.jobs()
    store.close()
    assert (job.id, job.kind, job.subject, job.state) == (artifact["job_id"], "pull", "tiny-model:q4", "ready")
    assert stat.S_IMODE((cache / "jobs" / "jobs.sqlite3").stat().st_mode) == 0o600
    again = body(sbproxy(*line, "--format", "json", "--offline"))
    assert again["artifacts"][0]["job_id"] is None
    assert again["artifacts"][0]["artifact_digest"] == artifact["artifact_digest"]


def test_pull_without_ids_takes_the_configured_deployments(config: Path, tmp_path: Path) -> None:
    pulled = body(sbproxy("models", "pull", "-f", str(config), "--format", "json"))
    assert [each["model"] for each in pulled["artifacts"]] == ["tiny-model"]
    # The configuration's place holds for every verb (contracts section 0, row 11).
    assert pulled["artifacts"][0]["snapshot_path"].startswith(str(tmp_path / "cache"))
    assert sbproxy("models", "list", "-f", str(config)).out.splitlines()[1].split()[-1] == "cached"


def test_pull_of_nothing_says_so(tmp_path: Path) -> None:
    ran = sbproxy("models", "pull", "--cache-dir", str(tmp_path), "--format", "json")
    assert body(ran)["artifacts"] == []
    assert "nothing is selected" in ran.err


def test_offline_without_a_copy(tmp_path: Path) -> None:
    catalog = tiny_catalog(tmp_path, "http://127.0.0.1:9/models/")
    ran = sbproxy(
        "models", "pull", "tiny-model", "--offline", "--catalog-file", str(catalog), "--cache-dir", str(tmp_path / "c")
    )
    assert (ran.code, ran.out) == (2, "")
    assert "--offline" in ran.err


def test_a_file_that_differs_from_the_catalog_fails_its_job(catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF" + bytes(4096))
    cache = tmp_path / "cache"
    ran = sbproxy("models", "pull", "tiny-model", "--catalog-file", str(catalog), "--cache-dir", str(cache))
    assert (ran.code, ran.out) == (2, "")
    assert "sha256" in ran.err
    store = SqliteJobStore(cache / "jobs" / "jobs.sqlite3")
    (job,) = store.jobs()
    store.close()
    assert (job.state, job.error_code) == ("failed", "digest_mismatch")


def test_both_engine_spellings(catalog: Path, tmp_path: Path) -> None:
    place = ("--catalog-file", str(catalog), "--cache-dir", str(tmp_path / "cache"))
    for spelling in ("llama_cpp", "llama-cpp"):
        pulled = body(sbproxy("models", "pull", "tiny-model", "--engine", spelling, *place, "--format", "json"))
        assert pulled["artifacts"][0]["engine"] == "llama_cpp"
    assert sbproxy("models", "pull", "tiny-model", "--engine", "vllm", *place).code == 2


def test_all_skips_what_cannot_run_here(tmp_path: Path) -> None:
    catalog = tiny_catalog(tmp_path)
    text = catalog.read_text()
    other = text[text.index("  tiny-model:") :].replace("tiny-model", "other").replace("[llama_cpp]", "[vllm]")
    catalog.write_text(text + other)
    place = ("--catalog-file", str(catalog), "--cache-dir", str(tmp_path / "cache"))
    ran = sbproxy("models", "pull", "--all", *place, "--format", "json")
    assert [each["model"] for each in body(ran)["artifacts"]] == ["tiny-model"]
    assert "skipped other: " in ran.err


def test_remove_and_prune(catalog: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    place = ("--catalog-file", str(catalog), "--cache-dir", str(cache))
    absent = body(sbproxy("models", "remove", "tiny-model", *place, "--format", "json"))
    assert (absent["removed"], absent["job_id"]) == (False, None)
    sbproxy("models", "pull", "tiny-model", *place)
    removed = body(sbproxy("models", "remove", "tiny-model", "--variant", "q4", *place, "--format", "json"))
    assert removed["command"] == "models.remove"
    assert (removed["model"], removed["variant"], removed["removed"]) == ("tiny-model", "q4", True)
    assert removed["reclaimed_bytes"] >= 4100
    assert removed["job_id"]
    assert sbproxy("models", "list", *place).out.splitlines()[1].split()[-1] == "not-pulled"
    orphan = cache / "blobs" / "sha256" / ("ab" * 32)
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"x" * 1000)
    counted = body(sbproxy("models", "prune", "--cache-dir", str(cache), "--dry-run", "--format", "json"))
    assert (counted["dry_run"], counted["orphan_blobs"], counted["reclaimed_bytes"]) == (True, 1, 1000)
    assert orphan.exists()
    pruned = body(sbproxy("models", "prune", "--cache-dir", str(cache), "--format", "json"))
    assert list(pruned) == [
        "schema_version", "command", "dry_run", "orphan_blobs", "reclaimed_bytes", "before_bytes",
    ]  # fmt: skip
    assert not orphan.exists()


def test_remove_fails_closed_on_a_configured_artifact(config: Path) -> None:
    sbproxy("models", "pull", "-f", str(config))
    ran = sbproxy("models", "remove", "tiny-model", "-f", str(config))
    assert (ran.code, ran.out) == (2, "")
    assert "configured" in ran.err
    assert sbproxy("models", "list", "-f", str(config)).out.splitlines()[1].split()[-1] == "cached"


def test_remove_fails_closed_while_another_process_leases_it(catalog: Path, tmp_path: Path) -> None:
    from sbproxy.artifacts.store import FileArtifactStore
    from sbproxy.catalog.core.model import ArtifactDigest

    cache = tmp_path / "cache"
    place = ("--catalog-file", str(catalog), "--cache-dir", str(cache))
    pulled = body(sbproxy("models", "pull", "tiny-model", *place, "--format", "json"))
    digest = ArtifactDigest(pulled["artifacts"][0]["artifact_digest"])
    with FileArtifactStore(cache, environ={}).lease(digest):
        ran = sbproxy("models", "remove", "tiny-model", *place)
    assert ran.code == 2
    assert "leased" in ran.err


def test_hostile_catalog_text_does_not_reach_the_terminal(catalog: Path, tmp_path: Path) -> None:
    catalog.write_text(catalog.read_text().replace("family: tiny", 'family: "a\\e]0;owned\\a\\e[31mb"'))
    ran = sbproxy("models", "show", "tiny-model", "--catalog-file", str(catalog), "--cache-dir", str(tmp_path / "c"))
    assert "\x1b" not in ran.out + ran.err
    assert "owned" not in ran.out


@pytest.mark.parametrize("place", ["/dev/null", "/proc/nowhere"])
def test_a_cache_that_cannot_be_is_named_and_is_no_defect(place: str) -> None:
    ran = sbproxy("models", "pull", "smollm2-135m-instruct", "--offline", "--cache-dir", place)
    assert ran.code == 2
    assert ran.out == ""
    assert place in ran.err
    assert "defect" not in ran.err
    assert len(ran.err.splitlines()) <= 2
