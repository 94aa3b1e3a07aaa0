"""The store itself: policies, states, damage, leases, removal, pruning, local sources, refusals."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbproxy.artifacts import locks
from sbproxy.artifacts.core.garbage import HeldBlob, HeldPartial
from sbproxy.artifacts.core.model import Corrupt, Missing, Partial, PullIntent, Ready, Removal, Snapshot
from sbproxy.artifacts.core.policy import MISS
from sbproxy.artifacts.disk import bytes_below, remove_tree
from sbproxy.artifacts.publication import Publication
from sbproxy.artifacts.removal import Collector
from sbproxy.artifacts.store import FileArtifactStore
from sbproxy.catalog.core.model import PullPolicy, ResolvedArtifact
from sbproxy.errors.artifacts import (
    ArtifactError,
    CacheCorrupt,
    DigestMismatch,
    DiskFull,
    ManualArtifactMissing,
    OfflineArtifactMissing,
    PickleRefused,
    PullCancelled,
    RemovalBlocked,
    SizeMismatch,
    SourceNotFound,
    StartupArtifactNotSelected,
    StoreUnusable,
    UnsafeArtifactPath,
)
from support.hub import Hub, etag_of
from support.pulls import noise, resolved, sha256

ONE, TWO = noise(50_000, 1), noise(70_000, 2)


@pytest.fixture
def store(tmp_path: Path) -> FileArtifactStore:
    return FileArtifactStore(tmp_path / "cache", environ={})


def local(folder: Path, files: dict[str, bytes], **options: Any) -> ResolvedArtifact:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return resolved(f"file:{folder}", files, **options)


def pull(store: FileArtifactStore, artifact: ResolvedArtifact, **options: Any) -> Snapshot:
    return store.ensure(artifact, intent="explicit", policy="on_demand", **options)


# -- policies -----------------------------------------------------------------------------------------------------

EXPECTED: dict[tuple[str, str], type[ArtifactError] | None] = {
    ("startup", "on_boot"): None,
    ("startup", "on_demand"): StartupArtifactNotSelected,
    ("startup", "manual"): ManualArtifactMissing,
    ("runtime", "on_boot"): None,
    ("runtime", "on_demand"): None,
    ("runtime", "manual"): ManualArtifactMissing,
    ("explicit", "on_boot"): None,
    ("explicit", "on_demand"): None,
    ("explicit", "manual"): None,
}


def test_the_policy_table_is_total() -> None:
    assert set(MISS) == set(EXPECTED)


@pytest.mark.parametrize(("intent", "policy"), list(EXPECTED))
def test_a_miss_and_then_a_hit_under_every_policy(
    tmp_path: Path, store: FileArtifactStore, intent: PullIntent, policy: PullPolicy
) -> None:
    artifact = local(tmp_path / "source", {"a.gguf": ONE})
    leaf = EXPECTED[intent, policy]
    if leaf is None:
        assert store.ensure(artifact, intent=intent, policy=policy).fetched_bytes == len(ONE)
    else:
        with pytest.raises(leaf):
            store.ensure(artifact, intent=intent, policy=policy)
        assert not store.paths.root.exists(), "a refusal writes nothing"
        pull(store, artifact)
    assert store.ensure(artifact, intent=intent, policy=policy, network=False).fetched_bytes == 0


@pytest.mark.parametrize("source", ["hf:Org/Repo", "https://files.example/a.gguf", "http://127.0.0.1:9/a.gguf"])
def test_offline_forbids_the_network(store: FileArtifactStore, source: str) -> None:
    with pytest.raises(OfflineArtifactMissing, match="--offline"):
        store.ensure(resolved(source, {"a.gguf": ONE}), intent="explicit", policy="manual", network=False)


def test_offline_copies_local_files_and_publishes_what_is_here_in_blobs(
    tmp_path: Path, store: FileArtifactStore
) -> None:
    pull(store, local(tmp_path / "source", {"a.gguf": ONE}), network=False)
    same_bytes = resolved("hf:Org/Repo", {"b.gguf": ONE})
    assert pull(store, same_bytes, network=False).file("b.gguf").read_bytes() == ONE


def test_pickle_needs_the_opt_in_whatever_the_format_says(store: FileArtifactStore) -> None:
    for name, declared in (("model.bin", "pickle"), ("extra.pt", "safetensors"), ("Extra.PKL", "gguf")):
        files = {name: ONE, "m.safetensors": TWO}
        with pytest.raises(PickleRefused, match="allow_pickle"):
            pull(store, resolved("hf:Org/Repo", files, artifact_format=declared))
    assert not store.paths.root.exists()


# -- refusals before anything is written --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../up", "/abs", "a//b", "a/./b", "a/../b", "", "a\\b", "nul\0", "line\nbreak", "artifact.json", "x" * 256],
)
def test_unsafe_file_names_are_refused(store: FileArtifactStore, name: str) -> None:
    with pytest.raises(UnsafeArtifactPath):
        pull(store, resolved("hf:Org/Repo", {name: ONE}))
    assert not store.paths.root.exists()


@pytest.mark.parametrize(
    "source",
    [
        "hf:Org", "hf:Org/../Repo", "hf:Org/Repo/more", "hf:../x", "hf:", "ms:Org/Repo", "http://files.example/a",
        "https://", "https:///path", "file:relative", "file:", "pypi:nothing-pinned", "s3://bucket/key", "",
    ],
)  # fmt: skip
def test_unusable_sources_are_refused(store: FileArtifactStore, source: str) -> None:
    with pytest.raises(UnsafeArtifactPath):
        pull(store, resolved(source, {"a.gguf": ONE}))


def test_a_name_that_is_file_and_folder_or_an_empty_file_is_refused(store: FileArtifactStore) -> None:
    for files in ({"a": ONE, "a/b": TWO}, {"a": b""}, {}):
        with pytest.raises(UnsafeArtifactPath):
            pull(store, resolved("hf:Org/Repo", files))


@pytest.mark.parametrize("digest", ["", "../../etc", "A" * 64, "0" * 63])
def test_only_digests_become_file_names(store: FileArtifactStore, digest: Any) -> None:
    with pytest.raises(UnsafeArtifactPath):
        store.remove(digest)
    with pytest.raises(UnsafeArtifactPath), store.lease(digest):
        pass


# -- local sources ------------------------------------------------------------------------------------------------


def test_local_files_are_copied_and_left_alone(tmp_path: Path, store: FileArtifactStore) -> None:
    source = tmp_path / "source"
    artifact = local(source, {"a.gguf": ONE, "deep/er/b.gguf": TWO})
    before = {path: path.stat() for path in source.rglob("*")}
    snapshot = pull(store, artifact)
    assert {name: snapshot.file(name).read_bytes() for name in ("a.gguf", "deep/er/b.gguf")} == {
        "a.gguf": ONE,
        "deep/er/b.gguf": TWO,
    }
    after = {path: path.stat() for path in source.rglob("*")}
    assert {path: (s.st_ino, s.st_mode, s.st_nlink, s.st_mtime_ns) for path, s in before.items()} == {
        path: (s.st_ino, s.st_mode, s.st_nlink, s.st_mtime_ns) for path, s in after.items()
    }


def test_a_local_source_may_be_the_file_itself(tmp_path: Path, store: FileArtifactStore) -> None:
    (tmp_path / "on disk.gguf").write_bytes(ONE)
    for form in (f"file:{tmp_path}/on disk.gguf", f"file://{tmp_path}/on disk.gguf"):
        artifact = resolved(form, {"named.gguf": ONE})
        assert pull(store, artifact).file("named.gguf").read_bytes() == ONE


def test_local_sources_that_are_not_what_the_catalog_says(tmp_path: Path, store: FileArtifactStore) -> None:
    source = tmp_path / "source"
    artifact = local(source, {"a.gguf": ONE})
    (source / "a.gguf").write_bytes(ONE[:-1])
    with pytest.raises(SizeMismatch):
        pull(store, artifact)
    (source / "a.gguf").write_bytes(ONE[:-1] + bytes([ONE[-1] ^ 1]))
    with pytest.raises(DigestMismatch):
        pull(store, artifact)
    (source / "a.gguf").unlink()
    with pytest.raises(SourceNotFound):
        pull(store, artifact)
    os.mkfifo(source / "a.gguf")
    with pytest.raises(UnsafeArtifactPath, match="not a regular file"):
        pull(store, artifact)
    assert store.state(artifact) == Missing()
    assert list(store.paths.blobs.iterdir()) == []
    (source / "a.gguf").unlink()
    (source / "a.gguf").write_bytes(ONE)
    assert pull(store, artifact).file("a.gguf").read_bytes() == ONE


# -- states and damage --------------------------------------------------------------------------------------------


def test_states_of_an_artifact(tmp_path: Path, store: FileArtifactStore) -> None:
    artifact = local(tmp_path / "source", {"a.gguf": ONE, "b.gguf": TWO})
    assert store.state(artifact) == Missing()
    pull(store, local(tmp_path / "source", {"a.gguf": ONE}, variant="other"))
    assert store.state(artifact) == Partial(len(ONE))
    snapshot = pull(store, artifact)
    assert store.state(artifact) == Ready(snapshot.path)
    snapshot.file("a.gguf").unlink()
    assert store.state(artifact) == Corrupt("a.gguf is missing")
    assert [record.variant_id for record in store.inventory()] == ["other"]
    assert pull(store, artifact).file("a.gguf").read_bytes() == ONE
    store.paths.record(artifact.digest).write_text("{}")
    assert store.state(artifact) == Corrupt("its record cannot be read")
    assert pull(store, artifact).fetched_bytes == 0
    assert store.state(artifact) == Ready(snapshot.path)


@pytest.mark.parametrize("junk", [b"", b"[" * 8000, b"{" + b" " * 5_000_000 + b"}", b"\xff" * 100, b"null"])
def test_a_junk_record_is_damage_and_is_repaired(tmp_path: Path, store: FileArtifactStore, junk: bytes) -> None:
    artifact = local(tmp_path / "source", {"a.gguf": ONE})
    pull(store, artifact)
    store.paths.record(artifact.digest).write_bytes(junk)
    (store.paths.metadata / f"{'z' * 64}.json").write_bytes(junk)
    assert store.state(artifact) == Corrupt("its record cannot be read")
    assert store.inventory() == []
    assert store.prune().orphan_blobs == 0, "the manifest still tells what the blob is for"
    assert pull(store, artifact).fetched_bytes == 0
    store.verify(artifact)
    assert len(store.inventory()) == 1


def test_junk_beside_a_partial_is_no_record_of_it(tmp_path: Path) -> None:
    with Hub({"Org/Repo/a.gguf": ONE}) as hub:
        store = FileArtifactStore(tmp_path, hub_url=hub.url, environ={})
        artifact = resolved("hf:Org/Repo", {"a.gguf": ONE})
        store.paths.create()
        store.paths.partial_folder(artifact.digest).mkdir()
        store.paths.partial(artifact.digest, sha256(ONE)).write_bytes(ONE[:1000])
        store.paths.resume(artifact.digest, sha256(ONE)).write_bytes(b"[" * 8000)
        store.paths.plan(artifact.digest).write_bytes(b"[" * 8000)
        assert store.prune().reclaimed_bytes == 0
        assert pull(store, artifact).fetched_bytes == len(ONE)


def test_a_damage_mark_is_shown_as_one_bounded_line(store: FileArtifactStore) -> None:
    artifact = resolved("hf:Org/Repo", {"a.gguf": ONE})
    store.paths.create()
    store.paths.damage_mark(artifact.digest).write_bytes(b"bits\x1b[2J\xff\n" + b"x" * 1_000_000)
    state = store.state(artifact)
    assert isinstance(state, Corrupt)
    assert state.reason.isprintable()
    assert len(state.reason) <= 2000


def flip_a_bit(path: Path) -> None:
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.seek(1234)
        byte = stream.read(1)
        stream.seek(1234)
        stream.write(bytes([byte[0] ^ 0x10]))


def test_bit_rot_is_found_withdrawn_and_repaired(tmp_path: Path, store: FileArtifactStore) -> None:
    artifact = local(tmp_path / "source", {"a.gguf": ONE, "b.gguf": TWO})
    sharing = local(tmp_path / "source", {"a.gguf": ONE}, variant="sharing")
    apart = local(tmp_path / "source", {"b.gguf": TWO}, variant="apart")
    for each in (artifact, sharing, apart):
        pull(store, each)
    flip_a_bit(store.paths.snapshot(artifact.digest) / "a.gguf")
    assert isinstance(store.state(artifact), Ready), "sizes do not show it"
    with pytest.raises(CacheCorrupt, match=r"a\.gguf"):
        store.verify(artifact)
    assert isinstance(store.state(artifact), Corrupt)
    assert isinstance(store.state(sharing), Corrupt), "its file is the same blob"
    assert isinstance(store.state(apart), Ready)
    with pytest.raises(CacheCorrupt):
        store.verify(artifact)
    assert [record.variant_id for record in store.inventory()] == ["apart"]
    assert pull(store, artifact).fetched_bytes == len(ONE)
    assert pull(store, sharing).fetched_bytes == 0
    for each in (artifact, sharing, apart):
        assert store.verify(each).verified_bytes == each.variant.total_size_bytes


def test_a_withdrawal_that_was_killed_halfway_is_damage(tmp_path: Path, store: FileArtifactStore) -> None:
    artifact = local(tmp_path / "source", {"a.gguf": ONE})
    pull(store, artifact)
    store.paths.damage_mark(artifact.digest).write_text("bits flipped")
    assert store.state(artifact) == Corrupt("bits flipped")
    assert store.inventory() == []
    pull(store, artifact)
    assert [record.digest for record in store.inventory()] == [artifact.digest]


def test_a_truncated_blob_is_fetched_again(tmp_path: Path, store: FileArtifactStore) -> None:
    artifact = local(tmp_path / "source", {"a.gguf": ONE})
    path = pull(store, artifact).file("a.gguf")
    path.chmod(0o644)
    os.truncate(path, 100)
    assert store.state(artifact) == Corrupt(f"a.gguf has 100 bytes instead of {len(ONE)}")
    assert pull(store, artifact).fetched_bytes == len(ONE)
    assert store.verify(artifact).file("a.gguf").read_bytes() == ONE


def test_a_repair_does_not_trust_blobs_of_the_right_size(tmp_path: Path, store: FileArtifactStore) -> None:
    artifact = local(tmp_path / "source", {"a.gguf": ONE, "b.gguf": TWO})
    snapshot = pull(store, artifact)
    snapshot.file("a.gguf").unlink()
    flip_a_bit(store.paths.blob(sha256(TWO)))
    assert pull(store, artifact).fetched_bytes == len(TWO)
    store.verify(artifact)


def test_verifying_what_is_not_here(store: FileArtifactStore) -> None:
    with pytest.raises(CacheCorrupt, match="no copy of it is here"):
        store.verify(resolved("hf:Org/Repo", {"a.gguf": ONE}))


def test_a_verification_can_be_cancelled(tmp_path: Path, store: FileArtifactStore) -> None:
    artifact = local(tmp_path / "source", {"a.gguf": ONE})
    pull(store, artifact)
    stop = threading.Event()
    stop.set()
    with pytest.raises(PullCancelled):
        store.verify(artifact, cancelled=stop)
    assert isinstance(store.state(artifact), Ready)


# -- removal, leases, pruning -------------------------------------------------------------------------------------


def test_removal_reclaims_only_what_nothing_else_needs(tmp_path: Path, store: FileArtifactStore) -> None:
    both = local(tmp_path / "source", {"a.gguf": ONE, "b.gguf": TWO})
    sharing = local(tmp_path / "source", {"a.gguf": ONE}, variant="sharing")
    pull(store, both)
    pull(store, sharing)
    assert store.remove(both.digest) == Removal(removed=True, reclaimed_bytes=len(TWO))
    assert isinstance(store.state(sharing), Ready)
    assert store.state(both) == Partial(len(ONE))
    assert store.remove(both.digest) == Removal(removed=False, reclaimed_bytes=0)
    assert store.remove(sharing.digest) == Removal(removed=True, reclaimed_bytes=len(ONE))
    assert list(store.paths.blobs.iterdir()) == []
    assert list(store.paths.metadata.iterdir()) == []
    assert list(store.paths.snapshots.iterdir()) == []


def test_removing_from_an_empty_root_creates_nothing(store: FileArtifactStore) -> None:
    assert not store.remove("0" * 64).removed
    assert store.prune().before_bytes == 0
    assert store.inventory() == []
    assert not store.paths.root.exists()


def test_protected_artifacts_stay(tmp_path: Path, store: FileArtifactStore) -> None:
    artifact = local(tmp_path / "source", {"a.gguf": ONE})
    pull(store, artifact)
    for options in ({"configured": True}, {"resident": True}):
        with pytest.raises(RemovalBlocked) as caught:
            store.remove(artifact.digest, **options)
        assert caught.value.reason == next(iter(options))
    with store.lease(artifact.digest), store.lease(artifact.digest):
        with pytest.raises(RemovalBlocked) as caught:
            store.remove(artifact.digest)
        assert caught.value.reason == "leased"
    with locks.exclusive(store.paths.pull_lock(artifact.digest)):
        with pytest.raises(RemovalBlocked) as caught:
            store.remove(artifact.digest)
        assert caught.value.reason == "locked"
    assert isinstance(store.state(artifact), Ready)
    assert store.remove(artifact.digest).removed


def test_prune_reports_first_and_takes_orphans_then(tmp_path: Path, store: FileArtifactStore) -> None:
    artifact = local(tmp_path / "source", {"a.gguf": ONE})
    pull(store, artifact)
    store.paths.blob(sha256(TWO)).write_bytes(TWO)
    store.paths.snapshot("1" * 64).mkdir()
    (store.paths.snapshot("1" * 64) / "b.gguf").hardlink_to(store.paths.blob(sha256(TWO)))
    (store.paths.snapshots / ".tmp-left").mkdir()
    (store.paths.metadata / ".tmp-left").write_text("x")
    dry = store.prune(dry_run=True)
    assert (dry.dry_run, dry.orphan_blobs, dry.reclaimed_bytes) == (True, 1, len(TWO))
    assert dry.before_bytes == len(ONE) + len(TWO)
    assert store.paths.blob(sha256(TWO)).exists()
    wet = store.prune()
    assert (wet.orphan_blobs, wet.reclaimed_bytes) == (1, len(TWO))
    assert [path.name for path in store.paths.blobs.iterdir()] == [sha256(ONE)]
    assert [path.name for path in store.paths.snapshots.iterdir()] == [artifact.digest]
    assert [path.name for path in store.paths.metadata.iterdir()] == [f"{artifact.digest}.json"]
    store.verify(artifact)


def test_prune_leaves_young_partials_and_running_pulls(tmp_path: Path, store: FileArtifactStore) -> None:
    digest, working = "2" * 64, "3" * 64
    store.paths.create()
    for name in (digest, working):
        store.paths.partial_folder(name).mkdir()
        store.paths.partial(name, sha256(TWO)).write_bytes(TWO[:100])
    store.paths.plan(working).write_text(json.dumps({"files": [{"sha256": sha256(ONE)}]}))
    store.paths.blob(sha256(ONE)).write_bytes(ONE)
    with locks.exclusive(store.paths.pull_lock(working)):
        assert store.prune().reclaimed_bytes == 0
        impatient = FileArtifactStore(store.paths.root, environ={}, partial_grace_s=0)
        assert impatient.prune().reclaimed_bytes == 100
        assert not store.paths.partial_folder(digest).exists()
        assert store.paths.blob(sha256(ONE)).exists()
    assert store.prune().orphan_blobs == 1
    assert store.paths.partial_folder(working).exists()
    plan_bytes = store.paths.plan(working).stat().st_size
    assert impatient.prune().reclaimed_bytes == 100 + plan_bytes


class LateCollector(Collector):
    """Something happens between what a prune found and what it removes."""

    def __init__(self, store: FileArtifactStore, between: Callable[[], None], grace_s: float = 0) -> None:
        super().__init__(Publication(store.paths), grace_s)
        self._between = between

    def _sweep(self, loose: list[HeldBlob], stale: list[HeldPartial]) -> list[HeldPartial]:
        self._between()
        return super()._sweep(loose, stale)


def leave_a_partial(store: FileArtifactStore, digest: str) -> None:
    store.paths.create()
    store.paths.partial_folder(digest).mkdir()
    store.paths.partial(digest, sha256(ONE)).write_bytes(ONE[:100])


def test_a_pull_that_begins_while_a_prune_is_at_work_keeps_its_folder(tmp_path: Path) -> None:
    with Hub({"Org/Repo/a.gguf": ONE}) as hub, ThreadPoolExecutor(1) as pool:
        store = FileArtifactStore(tmp_path, hub_url=hub.url, environ={})
        artifact = resolved("hf:Org/Repo", {"a.gguf": ONE})
        leave_a_partial(store, artifact.digest)
        hub.fault("drip", chunk=10_000, pause=0.05)
        pulls: list[Future[Snapshot]] = []

        def begin() -> None:
            under_way = threading.Event()
            pulls.append(pool.submit(pull, store, artifact, progress=lambda step: under_way.set()))
            assert under_way.wait(10)

        report = LateCollector(store, begin).prune(dry_run=False)
        assert report.reclaimed_bytes == 0
        assert pulls[0].result(20).file("a.gguf").read_bytes() == ONE
        store.verify(artifact)


def test_a_partial_that_changed_since_the_scan_is_looked_at_again(store: FileArtifactStore) -> None:
    finished, resumed, left = "2" * 64, "3" * 64, "4" * 64
    for digest in (finished, resumed, left):
        leave_a_partial(store, digest)
        for path in (store.paths.partial(digest, sha256(ONE)), store.paths.partial_folder(digest)):
            os.utime(path, (1, 1))

    def pulls_come_and_go() -> None:
        remove_tree(store.paths.partial_folder(finished))
        os.utime(store.paths.partial(resumed, sha256(ONE)))

    report = LateCollector(store, pulls_come_and_go, grace_s=3600).prune(dry_run=False)
    assert report.reclaimed_bytes == 100
    assert [path.name for path in store.paths.partials.iterdir()] == [resumed]


def test_prune_takes_the_locks_of_what_is_gone_and_no_other(tmp_path: Path, store: FileArtifactStore) -> None:
    here = local(tmp_path / "source", {"a.gguf": ONE})
    gone = local(tmp_path / "source", {"b.gguf": TWO}, variant="gone")
    for artifact in (here, gone):
        pull(store, artifact)
        with store.lease(artifact.digest):
            pass
    store.remove(gone.digest)
    (store.paths.locks / "of somebody else.lock").touch()
    kept = {store.paths.mutation_lock.name, f"{here.digest}.lock", f"lease-{here.digest}.lock", "of somebody else.lock"}
    with store.lease(gone.digest):
        store.prune()
        assert {path.name for path in store.paths.locks.iterdir()} == kept | {f"lease-{gone.digest}.lock"}
    store.prune(dry_run=True)
    assert len(list(store.paths.locks.iterdir())) == len(kept) + 1
    store.prune()
    assert {path.name for path in store.paths.locks.iterdir()} == kept
    pull(store, gone)
    with store.lease(gone.digest), pytest.raises(RemovalBlocked):
        store.remove(gone.digest)


def test_a_lock_whose_file_is_deleted_again_and_again_still_excludes(tmp_path: Path) -> None:
    lock, inside, most, turns = tmp_path / "a.lock", [0], [0], 300
    done = threading.Event()

    def work() -> None:
        for _ in range(turns):
            with locks.exclusive(lock, lambda: time.sleep(0)):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)
                inside[0] -= 1

    def delete() -> None:
        while not done.is_set():
            locks.discard(lock)

    deleter = threading.Thread(target=delete)
    workers = [threading.Thread(target=work) for _ in range(3)]
    for thread in (deleter, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    deleter.join()
    assert most == [1]


def test_a_waiter_follows_a_lock_to_its_new_file(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    waits: list[int] = []

    def wait() -> None:
        waits.append(1)
        if len(waits) == 1:
            holder.close()

    holder = ExitStack()
    holder.enter_context(locks.exclusive(lock))
    assert not locks.discard(lock), "it is held"
    lock.unlink()
    with locks.exclusive(lock, wait), locks.attempt(lock) as free:
        assert not free
    assert locks.discard(lock)
    assert not lock.exists()


def test_inventory_is_ordered_by_last_access(tmp_path: Path, store: FileArtifactStore) -> None:
    first, second = (local(tmp_path / "source", {"a.gguf": ONE}, variant=name) for name in ("one", "two"))
    pull(store, first)
    time.sleep(0.005)
    pull(store, second)
    assert [record.variant_id for record in store.inventory()] == ["one", "two"]
    time.sleep(0.005)
    pull(store, first)
    assert [record.variant_id for record in store.inventory()] == ["two", "one"]
    assert {record.license for record in store.inventory()} == {"apache-2.0"}


# -- places that cannot be used -----------------------------------------------------------------------------------


ROOTS = {
    "a file": ("file", "a file stands where a directory must"),
    "below a file": ("file/cache", "Not a directory; a file stands"),
    "a device": ("/dev/null", "Not a directory; a file stands"),
    "below a device": ("/dev/null/cache", "Not a directory; a file stands"),
    "a kernel's own": ("/proc/x", "choose another directory"),
    "a long name": ("x" * 300, "File name too long; choose a directory with a shorter path"),
    "a long path": ("x/" * 3000, "File name too long; choose a directory with a shorter path"),
    "a circle": ("circle", "its symbolic links lead in a circle"),
}


@pytest.mark.parametrize("kind", ROOTS)
def test_a_root_that_cannot_be_used_is_named_with_the_next_step(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "circle").symlink_to("circle")
    root, words = ROOTS[kind]
    store = FileArtifactStore(tmp_path / root, environ={})
    artifact = local(tmp_path / "source", {"a.gguf": ONE})

    def lease() -> None:
        with store.lease(artifact.digest):
            pass

    for write in (lambda: pull(store, artifact), lease):
        with pytest.raises(StoreUnusable) as caught:
            write()
        assert words in str(caught.value)
        assert str(caught.value).startswith(f"cache directory {tmp_path / root}: ")
    # These write nothing where there is nothing, but they never say that all is well where nothing can ever be.
    reads: list[Callable[[], object]] = [
        store.inventory,
        store.prune,
        lambda: store.remove(artifact.digest),
        lambda: store.verify(artifact),
        lambda: store.state(artifact),
    ]
    for read in reads[:3] if kind != "a kernel's own" else []:
        with pytest.raises(StoreUnusable):
            read()
    for read in reads:
        with suppress(StoreUnusable, CacheCorrupt):
            read()


def test_no_descriptor_left_is_told_as_that(tmp_path: Path, store: FileArtifactStore) -> None:
    artifact = local(tmp_path / "source", {"a.gguf": ONE})
    pull(store, artifact)
    other = local(tmp_path / "source", {"b.gguf": TWO})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        for use in (lambda: pull(store, other), lambda: store.verify(artifact), store.prune, store.inventory):
            with pytest.raises(StoreUnusable, match=r"Too many open files; .* raise its limit"):
                use()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    pull(store, other)


@pytest.mark.parametrize("source", ["file:/dev/null/model", "file:/" + "x" * 300, "file:/" + "x/" * 3000 + "m"])
def test_a_local_source_that_cannot_be_read_is_not_blamed_on_the_cache(store: FileArtifactStore, source: str) -> None:
    with pytest.raises((SourceNotFound, UnsafeArtifactPath)):
        pull(store, resolved(source, {"a.gguf": ONE}))


def test_files_that_come_and_go_while_they_are_counted(tmp_path: Path) -> None:
    done = threading.Event()

    def churn() -> None:
        while not done.is_set():
            folder = tmp_path / "work" / "inner"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "a").write_bytes(b"x")
            remove_tree(tmp_path / "work")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            assert bytes_below(tmp_path) in (0, 1)
    finally:
        done.set()
        thread.join()


def test_more_than_the_disk_has_is_refused_before_the_first_request(tmp_path: Path) -> None:
    with Hub({}) as hub:
        store = FileArtifactStore(tmp_path, hub_url=hub.url, environ={})
        artifact = resolved("hf:Org/Repo", {"a.gguf": ONE})
        huge = type(artifact.variant.files[0])("a.gguf", sha256(ONE), 2**60)
        object.__setattr__(artifact.variant, "files", (huge,))
        with pytest.raises(DiskFull) as caught:
            pull(store, artifact)
        assert caught.value.needed_bytes == 2**60
        assert 0 < caught.value.free_bytes < 2**60
        assert hub.requests == []


# -- laws ---------------------------------------------------------------------------------------------------------

LAW = noise(3000, 5)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prefix=st.integers(0, 3100),
    damage=st.sampled_from(["none", "bytes", "url", "etag", "sha", "size", "ahead", "no record", "nonsense"]),
)
def test_any_prefix_beside_any_record_ends_in_the_right_bytes(
    tmp_path_factory: pytest.TempPathFactory, prefix: int, damage: str
) -> None:
    root = tmp_path_factory.mktemp("law")
    with Hub({"Org/Repo/a.gguf": LAW}, redirect=False) as hub:
        artifact = resolved("hf:Org/Repo", {"a.gguf": LAW})
        store = FileArtifactStore(root, hub_url=hub.url, environ={})
        store.paths.create()
        folder = store.paths.partial_folder(artifact.digest)
        folder.mkdir()
        held = (LAW + b"x" * 100)[:prefix]
        if damage == "bytes" and held:
            held = bytes([held[0] ^ 1]) + held[1:]
        store.paths.partial(artifact.digest, sha256(LAW)).write_bytes(held)
        record = {
            "schema_version": 1,
            "url": f"{hub.url}/Org/Repo/resolve/{artifact.variant.revision}/a.gguf" + ("?" if damage == "url" else ""),
            "etag": '"another"' if damage == "etag" else etag_of(LAW),
            "expected_sha256": "0" * 64 if damage == "sha" else sha256(LAW),
            "expected_size": len(LAW) + (damage == "size"),
            "completed_bytes": prefix + 1 if damage == "ahead" else prefix // 2,
        }
        if damage != "no record":
            text = "{" if damage == "nonsense" else json.dumps(record)
            store.paths.resume(artifact.digest, sha256(LAW)).write_text(text)
        fetched = pull(store, artifact).fetched_bytes
        kept = prefix if damage == "none" and prefix <= len(LAW) else 0
        if damage != "bytes" and not (damage == "etag" and prefix == len(LAW)):
            assert fetched == len(LAW) - kept
        assert (store.paths.snapshot(artifact.digest) / "a.gguf").read_bytes() == LAW
