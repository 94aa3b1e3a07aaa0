"""The lockfile: what it holds, what it refuses to read, and every way a machine can depart from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbproxy.artifacts.core.lockfile import (
    Checked,
    LockedEngine,
    LockedFile,
    LockedModel,
    Lockfile,
    compare,
    decode,
    encode,
)
from sbproxy.artifacts.core.model import ArtifactState, Corrupt, Missing, Ready

ONE = LockedModel(
    "chat", "tiny", "q4", "ab" * 32, LockedEngine("llama_cpp", "b1"), (LockedFile("a.gguf", "cd" * 32, 10),)
)
TWO = replace(ONE, name="zeta", artifact_digest="12" * 32)
LOCK = Lockfile(1_800_000_000_000, "builtin-1", (ONE, TWO))
HERE: dict[str, ArtifactState] = {each.artifact_digest: Ready(Path("/x")) for each in LOCK.models}


def test_it_reads_what_it_wrote_with_the_documented_fields() -> None:
    assert decode(encode(LOCK)) == LOCK
    document = json.loads(encode(LOCK))
    assert list(document) == ["generated_at_ms", "catalog_revision", "models"]
    assert list(document["models"][0]) == ["name", "model", "variant_id", "artifact_digest", "engine", "files"]
    assert document["models"][0]["engine"] == {"kind": "llama_cpp", "version": "b1", "image": None}


def edited(change: dict[str, Any], *path: str | int) -> bytes:
    document: Any = json.loads(encode(LOCK))
    place = document
    for step in path:
        place = place[step]
    place.update(change)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "fields"),
        (b"{}", "fields"),
        (b"null", "fields"),
        (edited({"models": None}), "fields"),
        (edited({"models": {"a": 1}}), "fields"),
        (edited({"more": 1}), "fields"),
        (edited({"generated_at_ms": -1}), "head"),
        (edited({"catalog_revision": 3}), "head"),
        (edited({"name": "zeta"}, "models", 0), "twice"),
        (edited({"name": 3}, "models", 0), "no text"),
        (edited({"artifact_digest": "../../etc"}, "models", 0), "digest"),
        (edited({"files": []}, "models", 0), "no files"),
        (edited({"path": "../up"}, "models", 0, "files", 0), "not sound"),
        (edited({"sha256": "x"}, "models", 0, "files", 0), "not sound"),
        (edited({"size_bytes": True}, "models", 0, "files", 0), "not sound"),
        (edited({"version": 3}, "models", 0, "engine"), "pin"),
    ],
)
def test_anything_else_is_no_lockfile(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(data)


def test_a_machine_that_has_everything() -> None:
    ok = [Checked("chat", "q4", "ok"), Checked("zeta", "q4", "ok")]
    assert compare(LOCK, LOCK, HERE) == ok
    assert compare(LOCK, None, HERE) == ok, "without a configuration only the cache is looked at"


@pytest.mark.parametrize(
    ("state", "status", "words"),
    [
        (Missing(), "missing", "not in the cache"),
        (Corrupt("a.gguf has 3 bytes"), "digest_mismatch", "a.gguf has 3 bytes"),
    ],
)
def test_a_cache_that_departs(state: ArtifactState, status: str, words: str) -> None:
    first, second = compare(LOCK, LOCK, {**HERE, ONE.artifact_digest: state})
    assert (first.name, first.status, second.status) == ("chat", status, "ok")
    assert words in str(first.detail)
    assert "sbproxy models pull" in str(first.detail)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (replace(ONE, model="other", artifact_digest="00" * 32), "the model is other, locked is tiny"),
        (replace(ONE, variant_id="q8", artifact_digest="00" * 32), "the variant is q8, locked is q4"),
        (replace(ONE, artifact_digest="00" * 32), "the artifact is 000000000000, locked is abababababab"),
        (replace(ONE, engine=LockedEngine("vllm")), "the engine is vllm, locked is llama_cpp b1"),
        (replace(ONE, engine=LockedEngine("llama_cpp", "b2")), "the engine is llama_cpp b2, locked is llama_cpp b1"),
        (replace(ONE, files=(LockedFile("b.gguf", "cd" * 32, 10),)), "the files"),
    ],
)
def test_a_configuration_that_departs(changed: LockedModel, words: str) -> None:
    row = compare(LOCK, replace(LOCK, models=(changed, TWO)), HERE)[0]
    assert row.status == "digest_mismatch"
    assert words in str(row.detail)


def test_deployments_that_came_and_went() -> None:
    new = replace(ONE, name="new")
    rows = compare(LOCK, replace(LOCK, models=(ONE, new)), HERE)
    assert [(row.name, row.status) for row in rows] == [("chat", "ok"), ("new", "missing"), ("zeta", "missing")]
    assert "not in the lockfile" in str(rows[1].detail)
    assert "no such deployment" in str(rows[2].detail)
