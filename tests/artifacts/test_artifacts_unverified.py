"""Raw references keep out of the store: nothing is copied, recorded or counted as verified."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sbproxy.artifacts.core.model import Missing, Ready
from sbproxy.artifacts.store import FileArtifactStore
from sbproxy.catalog.core.model import Catalog, ResolvedArtifact, WorkerFacts
from sbproxy.catalog.core.raw_reference import FileFacts, raw_model, with_models
from sbproxy.catalog.core.resolve import resolve
from sbproxy.config.core.serve import ServeModelConfig
from sbproxy.errors.artifacts import SourceNotFound, StoreUnusable


def artifact(reference: str, size: int = 10) -> ResolvedArtifact:
    entry = ServeModelConfig(model=reference, name="n")
    assert entry.raw is not None
    model = raw_model(entry.raw, entry, FileFacts(size, 1) if entry.raw.kind == "file" else None)
    worker = WorkerFacts(frozenset({"cpu"}), frozenset({"llama_cpp"}))
    return resolve(with_models(Catalog("r1", {}), [model]), model.id, None, worker)


@pytest.fixture
def store(tmp_path: Path) -> FileArtifactStore:
    return FileArtifactStore(tmp_path / "cache", environ={})


def test_a_file_is_used_where_it_lies(store: FileArtifactStore, tmp_path: Path) -> None:
    path = tmp_path / "models" / "a.gguf"
    raw = artifact(f"file:{path}")
    assert store.state(raw) == Missing()
    with pytest.raises(SourceNotFound, match=r"a\.gguf"):
        store.ensure(raw, intent="runtime", policy="on_demand")
    path.parent.mkdir()
    path.write_bytes(b"GGUF")
    assert store.state(raw) == Ready(path.parent)
    snapshot = store.ensure(raw, intent="runtime", policy="manual", network=False)
    assert snapshot.file("a.gguf") == path
    assert (snapshot.verified_bytes, snapshot.fetched_bytes) == (0, 0)
    assert not store.paths.root.exists()
    assert store.inventory() == []


def test_a_repository_gets_a_folder_of_its_own_to_write_to(store: FileArtifactStore) -> None:
    raw = artifact("hf:Org/Small-1B-GGUF")
    home = store.paths.root / "hf-home"
    assert store.state(raw) == Ready(home)
    assert store.ensure(raw, intent="runtime", policy="on_demand").path == home
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert store.inventory() == []
    with store.lease(raw.digest):
        assert store.state(raw) == Ready(home)


def test_a_root_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = FileArtifactStore(tmp_path / "file" / "cache", environ={})
    with pytest.raises(StoreUnusable):
        broken.ensure(artifact("hf:Org/Small-1B-GGUF"), intent="runtime", policy="on_demand")
