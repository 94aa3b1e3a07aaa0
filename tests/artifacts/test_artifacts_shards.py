"""Models in several files: all parts or none, each verified, under the names that their engines look for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbproxy.artifacts.core.shards import missing_of_index, missing_parts
from sbproxy.artifacts.store import FileArtifactStore
from sbproxy.errors.artifacts import DigestMismatch, UnsafeArtifactPath
from support.hub import Hub
from support.pulls import noise, resolved

GGUF = {f"q4/model-0000{number}-of-00003.gguf": noise(5000 + number, number) for number in (1, 2, 3)}


def index(*names: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": {f"layer.{n}": name for n, name in enumerate(names)}}).encode()


SAFETENSORS = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": noise(4000, 1),
    "model-00002-of-00002.safetensors": noise(4000, 2),
    "model.safetensors.index.json": index("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
}


@pytest.mark.parametrize("files", [GGUF, SAFETENSORS], ids=["gguf", "safetensors"])
def test_all_parts_under_their_names(tmp_path: Path, files: dict[str, bytes]) -> None:
    with Hub({f"Org/Repo/{name}": data for name, data in files.items()}) as hub:
        store = FileArtifactStore(tmp_path, hub_url=hub.url, environ={})
        artifact = resolved("hf:Org/Repo", files)
        snapshot = store.ensure(artifact, intent="explicit", policy="on_demand")
        assert {name: snapshot.file(name).read_bytes() for name in files} == files
        assert snapshot.verified_bytes == sum(map(len, files.values()))
        store.verify(artifact)


def test_one_wrong_part_publishes_none(tmp_path: Path) -> None:
    served = {f"Org/Repo/{name}": data for name, data in GGUF.items()}
    last = max(GGUF)
    served[f"Org/Repo/{last}"] = noise(len(GGUF[last]), 99)
    with Hub(served, redirect=False) as hub:
        store = FileArtifactStore(tmp_path, hub_url=hub.url, environ={})
        with pytest.raises(DigestMismatch, match="00003-of-00003"):
            store.ensure(resolved("hf:Org/Repo", GGUF), intent="explicit", policy="on_demand")
        assert store.inventory() == []
        assert list(store.paths.snapshots.iterdir()) == []


def test_a_variant_that_lacks_a_part_is_refused_before_a_byte_is_fetched(tmp_path: Path) -> None:
    store = FileArtifactStore(tmp_path / "cache", environ={})
    some = {name: data for name, data in GGUF.items() if "00002" not in name}
    with pytest.raises(UnsafeArtifactPath, match=r"model-00002-of-00003.gguf: .* but not this one"):
        store.ensure(resolved("hf:Org/Repo", some), intent="explicit", policy="on_demand")
    assert not store.paths.root.exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (index("model-00001-of-00002.safetensors", "model-00009.safetensors"), "names 'model-00009.safetensors'"),
        (index("../../etc/passwd"), "etc/passwd"),
        (b"[]", "no weight_map"),
        (b"{", "is no safetensors index"),
        (b'{"weight_map": {"a": 1}}', "no weight_map"),
        (b"[" * 100_000, "is no safetensors index"),
    ],
)
def test_an_index_that_leads_nowhere_publishes_nothing(tmp_path: Path, data: bytes, words: str) -> None:
    files = {**SAFETENSORS, "model.safetensors.index.json": data}
    source = tmp_path / "source"
    source.mkdir()
    for name, content in files.items():
        (source / name).write_bytes(content)
    store = FileArtifactStore(tmp_path / "cache", environ={})
    with pytest.raises(UnsafeArtifactPath, match=words):
        store.ensure(resolved(f"file:{source}", files), intent="explicit", policy="on_demand")
    assert store.inventory() == []


def test_what_the_names_promise() -> None:
    assert missing_parts(["a.gguf", "README.md"]) == []
    assert missing_parts(["x/a-00001-of-00001.gguf"]) == []
    assert missing_parts(["a-00001-of-00002.gguf", "b-00002-of-00002.gguf"]) == [
        "a-00002-of-00002.gguf",
        "b-00001-of-00002.gguf",
    ]
    assert missing_parts(["a-00001-of-99999.gguf"]) == ["a-00002-of-99999.gguf"], "one name is enough"
    assert missing_of_index("sub/m.safetensors.index.json", index("p.safetensors"), ["sub/p.safetensors"]) == []
