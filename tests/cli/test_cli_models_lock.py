"""`models lock|verify-lock` and `serve --locked`: what a configuration means is pinned, and departures are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.cli import Ran, sbproxy
from support.daemon import tiny_catalog


@pytest.fixture
def config(tmp_path: Path) -> Path:
    tiny_catalog(tmp_path)
    path = tmp_path / "sb.yml"
    path.write_text(
        f"proxy:\n  model_host:\n    catalog_file: catalog.yml\n    cache: {{directory: {tmp_path}/cache}}\n"
        "    deployments:\n      tiny: {model: tiny-model}\n"
    )
    return path


def body(ran: Ran, code: int = 0) -> dict[str, Any]:
    assert ran.code == code, ran.err
    value: dict[str, Any] = json.loads(ran.out)
    assert value["schema_version"] == 1
    return value


def locked(config: Path) -> dict[str, Any]:
    return body(sbproxy("models", "lock", "-f", str(config), "--format", "json"))


def checked(config: Path, code: int = 0) -> dict[str, Any]:
    return body(sbproxy("models", "verify-lock", "-f", str(config), "--format", "json"), code)


def test_lock_writes_beside_the_configuration(config: Path, tmp_path: Path) -> None:
    fields = locked(config)
    assert list(fields) == ["schema_version", "command", "path", "catalog_revision", "models"]
    assert fields["command"] == "models.lock"
    assert fields["path"] == str(tmp_path / "sbproxy-models.lock")
    (model,) = fields["models"]
    assert list(model) == ["name", "variant", "engine", "artifact_digest"]
    assert (model["name"], model["variant"], model["engine"]) == ("tiny", "q4", "llama_cpp")
    written = json.loads((tmp_path / "sbproxy-models.lock").read_text())
    assert written["catalog_revision"] == fields["catalog_revision"]
    (entry,) = written["models"]
    assert (entry["name"], entry["variant_id"], entry["artifact_digest"]) == ("tiny", "q4", model["artifact_digest"])
    assert entry["engine"]["kind"] == "llama_cpp"
    assert entry["files"][0]["path"] == "tiny.gguf"
    elsewhere = tmp_path / "elsewhere.lock"
    said = sbproxy("models", "lock", "-f", str(config), "--out", str(elsewhere))
    assert (said.code, elsewhere.exists()) == (0, True)
    assert f"written to {elsewhere}" in said.out


def test_lock_needs_a_configuration_and_a_place(config: Path, tmp_path: Path) -> None:
    assert sbproxy("models", "lock").code == 2
    ran = sbproxy("models", "lock", "-f", str(config), "--out", str(tmp_path / "gone" / "x.lock"))
    assert (ran.code, ran.out) == (2, "")
    assert str(tmp_path / "gone") in ran.err


def test_verify_tells_what_is_missing_damaged_and_changed(config: Path, tmp_path: Path) -> None:
    locked(config)
    fields = checked(config, 2)
    assert list(fields) == ["schema_version", "command", "lockfile", "drift", "models"]
    assert (fields["command"], fields["drift"]) == ("models.verify-lock", True)
    assert fields["models"][0]["status"] == "missing"
    assert "sbproxy models pull" in fields["models"][0]["detail"]
    assert sbproxy("models", "pull", "-f", str(config)).code == 0
    sound = checked(config)
    assert (sound["drift"], sound["models"]) == (False, [{"name": "tiny", "variant": "q4", "status": "ok"}])
    assert "ok" in sbproxy("models", "verify-lock", "-f", str(config)).out
    # One changed byte: no size tells it, only the hash does.
    (blob,) = (tmp_path / "cache" / "blobs" / "sha256").iterdir()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(data)
    damaged = checked(config, 2)["models"][0]
    assert damaged["status"] == "digest_mismatch"
    assert "tiny.gguf" in damaged["detail"]


def test_verify_notices_a_configuration_that_means_something_else(config: Path, tmp_path: Path) -> None:
    sbproxy("models", "pull", "-f", str(config))
    locked(config)
    config.write_text(config.read_text() + "      second: {model: tiny-model}\n")
    rows = {row["name"]: row for row in checked(config, 2)["models"]}
    assert (rows["tiny"]["status"], rows["second"]["status"]) == ("ok", "missing")
    catalog = tmp_path / "catalog.yml"
    text = catalog.read_text()
    revision = next(line for line in text.splitlines() if line.startswith("catalog_revision:"))
    catalog.write_text(text.replace(revision, "catalog_revision: another-1"))
    locks = {row["name"]: row["status"] for row in checked(config, 2)["models"]}
    assert locks == {"tiny": "digest_mismatch", "second": "missing"}


def test_verify_without_a_configuration_looks_at_the_cache_alone(config: Path, tmp_path: Path) -> None:
    sbproxy("models", "pull", "-f", str(config))
    place = locked(config)["path"]
    line = ("models", "verify-lock", "--lockfile", place, "--cache-dir", str(tmp_path / "cache"), "--format", "json")
    assert body(sbproxy(*line))["drift"] is False
    other = (*line[:5], str(tmp_path / "empty"), *line[6:])
    assert body(sbproxy(*other), 2)["models"][0]["status"] == "missing"
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize(("text", "words"), [(None, "there is no such file"), ("{", "no JSON"), ("{}", "fields")])
def test_a_lockfile_that_is_none(config: Path, tmp_path: Path, text: str | None, words: str) -> None:
    place = tmp_path / "sbproxy-models.lock"
    if text is not None:
        place.write_text(text)
    ran = sbproxy("models", "verify-lock", "-f", str(config))
    assert (ran.code, ran.out) == (2, "")
    assert str(place) in ran.err
    assert words in ran.err
    assert "sbproxy models lock" in ran.err


def test_a_raw_reference_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    path = tmp_path / "sb.yml"
    path.write_text(
        "origins:\n  x.example:\n    action:\n      type: ai_proxy\n      providers:\n        - name: local\n"
        f"          serve:\n            models:\n              - {{model: 'file:{tmp_path}/m.gguf', name: raw}}\n"
    )
    ran = sbproxy("models", "lock", "-f", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert "raw reference" in ran.err
    assert not (tmp_path / "sbproxy-models.lock").exists()


def test_serve_locked_refuses_before_anything_starts(config: Path) -> None:
    for argv in (["serve", str(config), "--locked"], ["--locked", str(config)], ["--check", "--locked", str(config)]):
        ran = sbproxy(*argv)
        assert ran.code == 2
        assert "sbproxy-models.lock" in ran.err
    locked(config)
    ran = sbproxy("serve", str(config), "--locked")
    assert ran.code == 2
    assert "tiny: not in the cache; run: sbproxy models pull" in ran.err
    sbproxy("models", "pull", "-f", str(config))
    assert sbproxy("serve", str(config), "--locked", "--check").code == 0
    config.write_text(config.read_text().replace("tiny: {", "other: {"))
    ran = sbproxy("serve", str(config), "--locked")
    assert ran.code == 2
    assert "other: not in the lockfile" in ran.err
    assert sbproxy("models", "list", "--locked").code == 2
