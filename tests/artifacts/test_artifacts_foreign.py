"""Caches of Ollama, LM Studio and the Hugging Face hub: found by size, imported by hash, only read, never trusted."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sbproxy.artifacts.core.foreign import Origin, places
from sbproxy.artifacts.core.model import PullProgress, Ready, Snapshot
from sbproxy.artifacts.foreign_caches import MAX_CANDIDATES, ForeignCaches
from sbproxy.artifacts.store import FileArtifactStore
from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.errors.artifacts import ManualArtifactMissing, OfflineArtifactMissing, PullCancelled
from support.hub import Hub
from support.pulls import noise, resolved, sha256

ONE, TWO = noise(50_000, 1), noise(70_000, 2)
REVISION = "0123456789abcdef0123456789abcdef01234567"


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def ollama(home: Path, data: bytes = ONE, believed: str | None = None) -> Path:
    """As `ollama pull` leaves it: a manifest, and one blob a layer under the digest that Ollama believes."""
    models, digest = home / ".ollama" / "models", believed or sha256(data)
    template = put(models / "blobs" / f"sha256-{sha256(b'template')}", b"template")
    layers = [
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": len(data)},
        {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{template.name[7:]}", "size": 8},
    ]
    put(
        models / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest",
        json.dumps({"layers": layers}).encode(),
    )
    put(models / "blobs" / f"sha256-{digest}-partial-0", data[:100])
    return put(models / "blobs" / f"sha256-{digest}", data)


def lm_studio(home: Path, data: bytes = ONE, name: str = "Org/Repo/a.gguf", root: str = ".lmstudio/models") -> Path:
    return put(home / root / name, data)


def hub(home: Path, data: bytes = ONE, *, revision: str = REVISION, root: str = ".cache/huggingface/hub") -> Path:
    """As huggingface_hub lays a repository out: blobs under their ETag, snapshots of relative links."""
    repository = home / root / "models--Org--Repo"
    blob = put(repository / "blobs" / sha256(data), data)
    put(repository / "refs" / "main", revision.encode())
    link = repository / "snapshots" / revision / "a.gguf"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    return blob


CACHES: dict[Origin, Callable[..., Path]] = {"ollama": ollama, "lm-studio": lm_studio, "hf hub": hub}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def store_of(tmp_path: Path, home: Path, hub_url: str | None = None, **environ: str) -> FileArtifactStore:
    return FileArtifactStore(tmp_path / "cache", environ={"HOME": str(home), **environ}, hub_url=hub_url)


def wanted(source: str = "hf:Org/Repo", data: bytes = ONE) -> ResolvedArtifact:
    return resolved(source, {"a.gguf": data}, revision=REVISION)


def pull(store: FileArtifactStore, artifact: ResolvedArtifact, *, network: bool = False) -> Snapshot:
    return store.ensure(artifact, intent="explicit", policy="on_demand", network=network)


@pytest.mark.parametrize("origin", CACHES)
def test_each_cache_seeds_a_pull_without_a_network(tmp_path: Path, home: Path, origin: Origin) -> None:
    theirs = CACHES[origin](home)
    before = theirs.stat()
    store = store_of(tmp_path, home)
    assert store.importable(wanted()) == origin
    assert not store.paths.root.exists(), "looking writes nothing"
    phases: list[PullProgress] = []
    snapshot = store.ensure(wanted(), intent="explicit", policy="on_demand", network=False, progress=phases.append)
    assert snapshot.file("a.gguf").read_bytes() == ONE
    assert phases[-1].phase == "ready"
    assert phases[-1].completed_bytes == len(ONE)
    # A copy: their owner may change the original whenever it likes.
    assert (theirs.stat().st_ino, theirs.stat().st_mtime_ns, theirs.stat().st_nlink) == (
        before.st_ino, before.st_mtime_ns, before.st_nlink,
    )  # fmt: skip
    theirs.write_bytes(bytes(len(ONE)))
    store.verify(wanted())
    assert store.importable(wanted()) is None, "nothing is missing any more"


@pytest.mark.parametrize("origin", CACHES)
@pytest.mark.parametrize("source", ["https://files.example/a.gguf", "hf:Other/Name"])
def test_where_the_bytes_once_came_from_does_not_matter(
    tmp_path: Path, home: Path, origin: Origin, source: str
) -> None:
    CACHES[origin](home)
    store = store_of(tmp_path, home)
    assert store.importable(wanted(source)) == origin
    assert pull(store, wanted(source)).file("a.gguf").read_bytes() == ONE


@pytest.mark.parametrize(
    ("variable", "value", "make"),
    [
        ("OLLAMA_MODELS", "shared/.ollama/models", ollama),
        ("HF_HOME", "shared/hf", lambda home: hub(home, root="hf/hub")),
        ("HF_HUB_CACHE", "shared/cache", lambda home: hub(home, root="cache")),
        ("XDG_CACHE_HOME", "shared", lambda home: hub(home, root="huggingface/hub")),
    ],
)
def test_the_variables_of_the_other_programs(
    tmp_path: Path, home: Path, variable: str, value: str, make: Callable[[Path], Path]
) -> None:
    make(tmp_path / "shared")
    store = store_of(tmp_path, home, **{variable: str(tmp_path / value)})
    assert store.importable(wanted()) is not None
    assert store_of(tmp_path, home).importable(wanted()) is None


def test_the_older_folder_of_lm_studio_and_another_name(tmp_path: Path, home: Path) -> None:
    lm_studio(home, name="somebody/else/renamed.gguf", root=".cache/lm-studio/models")
    store = store_of(tmp_path, home)
    assert store.importable(wanted()) == "lm-studio"
    assert pull(store, wanted()).file("a.gguf").read_bytes() == ONE


def test_any_revision_of_a_hub_repository_will_do(tmp_path: Path, home: Path) -> None:
    theirs = hub(home, revision="f" * 40)
    theirs.rename(theirs.with_name("a-git-etag"))
    link = theirs.parent.parent / "snapshots" / ("f" * 40) / "a.gguf"
    link.unlink()
    link.symlink_to("../../blobs/a-git-etag")
    store = store_of(tmp_path, home)
    assert store.importable(wanted()) == "hf hub"
    assert pull(store, wanted()).verified_bytes == len(ONE)


@pytest.mark.parametrize("origin", CACHES)
def test_another_size_is_not_offered(tmp_path: Path, home: Path, origin: Origin) -> None:
    CACHES[origin](home, ONE[:-1])
    assert store_of(tmp_path, home).importable(wanted()) is None


@pytest.mark.parametrize("origin", CACHES)
def test_wrong_bytes_of_the_right_size_fall_back_to_the_network(tmp_path: Path, home: Path, origin: Origin) -> None:
    forged = bytes(len(ONE))
    if origin == "ollama":
        ollama(home, forged, believed=sha256(ONE))
    else:
        CACHES[origin](home, forged)
    with Hub({"Org/Repo/a.gguf": ONE}) as served:
        store = store_of(tmp_path, home, served.url)
        assert store.importable(wanted()) == origin, "sizes are all that a listing looks at"
        with pytest.raises(OfflineArtifactMissing):
            pull(store, wanted())
        snapshot = pull(store, wanted(), network=True)
        assert snapshot.fetched_bytes == len(ONE)
        assert snapshot.file("a.gguf").read_bytes() == ONE
        assert served.requests
        assert list(store.paths.partials.iterdir()) == []


def test_what_is_found_here_is_not_fetched(tmp_path: Path, home: Path) -> None:
    both = {"a.gguf": ONE, "b.gguf": TWO}
    ollama(home, ONE)
    with Hub({f"Org/Repo/{name}": data for name, data in both.items()}) as served:
        store = store_of(tmp_path, home, served.url)
        artifact = resolved("hf:Org/Repo", both, revision=REVISION)
        assert store.importable(artifact) is None, "one of its files is nowhere"
        with pytest.raises(OfflineArtifactMissing):
            pull(store, artifact)
        pull(store, artifact, network=True)
        assert [request.path for request in served.requests if "a.gguf" in request.path] == []
        assert isinstance(store.state(artifact), Ready)


def test_the_partial_of_an_interrupted_download_outlives_a_wrong_import(tmp_path: Path, home: Path) -> None:
    with Hub({"Org/Repo/a.gguf": ONE}, redirect=False) as served:
        served.fault("drip", chunk=5_000, pause=0.02)
        cancelled = threading.Event()

        def cancel(step: PullProgress) -> None:
            if step.completed_bytes >= 10_000:
                cancelled.set()

        with pytest.raises(PullCancelled):
            FileArtifactStore(tmp_path / "cache", environ={}, hub_url=served.url).ensure(
                wanted(), intent="explicit", policy="on_demand", progress=cancel, cancelled=cancelled
            )
        lm_studio(home, bytes(len(ONE)))
        snapshot = pull(store_of(tmp_path, home, served.url), wanted(), network=True)
        assert snapshot.file("a.gguf").read_bytes() == ONE
        assert snapshot.fetched_bytes <= len(ONE) - 10_000, "it was continued, and the wrong copy was not fetched"


def test_an_import_needs_no_credential(tmp_path: Path, home: Path) -> None:
    hub(home)
    artifact = resolved("hf:Org/Repo", {"a.gguf": ONE}, revision=REVISION, hf_token="${NOT_SET_ANYWHERE}")
    assert pull(store_of(tmp_path, home), artifact, network=True).verified_bytes == len(ONE)


def test_a_policy_that_refuses_a_miss_refuses_an_import_too(tmp_path: Path, home: Path) -> None:
    ollama(home)
    store = store_of(tmp_path, home)
    with pytest.raises(ManualArtifactMissing):
        store.ensure(wanted(), intent="runtime", policy="manual")
    assert not store.paths.root.exists()


def test_folders_that_are_no_caches_count_as_empty(tmp_path: Path, home: Path) -> None:
    put(home / ".lmstudio" / "models", b"a file")
    (home / ".ollama").mkdir()
    (home / ".ollama" / "models").symlink_to("models")
    pipe = home / ".cache" / "huggingface" / "hub" / "models--Org--Repo" / "blobs" / sha256(ONE)
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    assert store_of(tmp_path, home).importable(wanted()) is None


def test_relative_places_and_no_home_lead_nowhere() -> None:
    assert places({}) == places({"OLLAMA_MODELS": "models", "HF_HOME": "hf"})
    assert places({}).ollama == ()


def test_few_wrong_candidates_are_tried(tmp_path: Path, home: Path) -> None:
    for number in range(MAX_CANDIDATES + 3):
        lm_studio(home, bytes([number]) * len(ONE), name=f"Org/Repo-{number}/b.gguf")
    caches = ForeignCaches({"HOME": str(home)})
    artifact = wanted()
    assert len(list(caches.candidates(artifact.variant, artifact.variant.files[0]))) == MAX_CANDIDATES
    lm_studio(home, name="Org/z-last/a.gguf")
    first = next(ForeignCaches({"HOME": str(home)}).candidates(artifact.variant, artifact.variant.files[0]))
    assert first.path.name == "a.gguf", "the same name is the better guess"
