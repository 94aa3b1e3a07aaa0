"""Collection to a budget: the order, every protection, shared blobs, and the laws that hold for any cache."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbproxy.artifacts import locks
from sbproxy.artifacts.core.garbage import HeldBlob, HeldPartial
from sbproxy.artifacts.core.model import GcReport, Missing, Ready
from sbproxy.artifacts.core.sweep import (
    SHARED,
    DropBlob,
    DropPartial,
    Holding,
    RemoveArtifact,
    Step,
    Sweep,
    budget_bytes,
    protections,
)
from sbproxy.artifacts.store import FileArtifactStore
from sbproxy.catalog.core.model import ResolvedArtifact
from support.hub import Hub
from support.pulls import noise, resolved, sha256

GRACE_S = 100.0


def sweep_of(
    budget: int,
    blobs: dict[str, int],
    holdings: list[Holding],
    *,
    partials: tuple[HeldPartial, ...] = (),
    in_use: frozenset[str] = frozenset(),
) -> Sweep:
    return Sweep(
        budget,
        blobs=[HeldBlob(*each) for each in blobs.items()],
        partials=partials,
        holdings=holdings,
        in_use=in_use,
        partial_grace_s=GRACE_S,
    )


def run(sweep: Sweep) -> list[Step]:
    steps = []
    while (step := sweep.next_step()) is not None:
        steps.append(step)
        sweep.done(step)
    return steps


def held(digest: str, accessed: int, *blobs: str, protection: str | None = None) -> Holding:
    return Holding(digest, accessed, frozenset(blobs), protection)


# -- the decision -------------------------------------------------------------------------------------------------


def test_within_the_budget_nothing_goes() -> None:
    sweep = sweep_of(30, {"loose": 10, "a": 20}, [held("A", 1, "a")])
    assert run(sweep) == []
    assert sweep.report() == GcReport(30, 30, 0, (), {}, 0)


def test_loose_blobs_then_abandoned_partials_then_the_least_recently_used() -> None:
    sweep = sweep_of(
        0,
        {"y": 1, "x": 1, "a": 10, "b": 10, "c": 10},
        [held("C", 2, "c"), held("B", 1, "b"), held("A", 2, "a")],
        partials=(HeldPartial("old", 5, GRACE_S, False), HeldPartial("young", 5, 1, False)),
    )
    assert run(sweep) == [
        DropBlob("x"),
        DropBlob("y"),
        DropPartial("old"),
        RemoveArtifact("B", ("b",)),
        RemoveArtifact("A", ("a",)),
        RemoveArtifact("C", ("c",)),
    ]
    assert sweep.report() == GcReport(42, 5, 37, ("B", "A", "C"), {}, 5)


def test_it_stops_as_soon_as_the_budget_holds() -> None:
    sweep = sweep_of(15, {"a": 10, "b": 10, "c": 10}, [held("A", 1, "a"), held("B", 2, "b"), held("C", 3, "c")])
    assert run(sweep) == [RemoveArtifact("A", ("a",)), RemoveArtifact("B", ("b",))]
    assert sweep.report() == GcReport(30, 10, 20, ("A", "B"), {}, 0)


def test_what_is_protected_is_passed_over_and_named() -> None:
    sweep = sweep_of(
        5, {"a": 10, "b": 10, "c": 10}, [held("A", 1, "a", protection="pinned"), held("B", 2, "b"), held("C", 3, "c")]
    )
    refused = sweep.next_step()
    assert refused == RemoveArtifact("B", ("b",))
    sweep.refused(RemoveArtifact("B", ("b",)), "leased")
    assert run(sweep) == [RemoveArtifact("C", ("c",))]
    assert sweep.report() == GcReport(30, 20, 10, ("C",), {"A": "pinned", "B": "leased"}, 15)


def test_a_shared_blob_stays_with_its_last_reference() -> None:
    holdings = [held("A", 1, "a", "s"), held("B", 2, "b", "s"), held("C", 3, "c", "s", protection="configured")]
    sweep = sweep_of(0, {"a": 1, "b": 1, "c": 1, "s": 100}, holdings)
    assert run(sweep) == [RemoveArtifact("A", ("a",)), RemoveArtifact("B", ("b",))]
    assert sweep.report().after_bytes == 101


def test_an_artifact_that_would_free_nothing_is_kept() -> None:
    holdings = [held("A", 1, "s"), held("B", 2, "s", protection="configured"), held("C", 3, "c")]
    sweep = sweep_of(0, {"s": 10, "c": 10}, holdings)
    assert run(sweep) == [RemoveArtifact("C", ("c",))]
    assert sweep.report().skipped_artifacts == {"A": SHARED, "B": "configured"}


def test_blobs_of_a_pull_at_work_are_not_loose() -> None:
    sweep = sweep_of(0, {"a": 10, "b": 10}, [held("A", 1, "a")], in_use=frozenset("ab"))
    assert run(sweep) == []
    assert sweep.report() == GcReport(20, 20, 0, (), {"A": SHARED}, 20)


def test_the_first_reason_named_wins() -> None:
    assert protections({"resident": ["a"], "configured": ["a", "b"]}) == {"a": "resident", "b": "configured"}
    assert budget_bytes(0.5) == 1 << 29


BLOBS = [f"{letter}" for letter in "abcdefgh"]


@settings(max_examples=400, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 100), min_size=8, max_size=8),
    artifacts=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sets(st.sampled_from(BLOBS), min_size=1, max_size=4),
            st.sampled_from([None, None, None, "configured", "pinned", "resident"]),
            st.booleans(),
        ),
        max_size=7,
    ),
    budget=st.integers(0, 500),
    in_use=st.sets(st.sampled_from(BLOBS), max_size=2),
)
def test_any_collection(
    sizes: list[int],
    artifacts: list[tuple[int, set[str], str | None, bool]],
    budget: int,
    in_use: set[str],
) -> None:
    blobs = dict(zip(BLOBS, sizes, strict=True))
    holdings = [held(f"{n}", accessed, *mine, protection=why) for n, (accessed, mine, why, _) in enumerate(artifacts)]
    taken = {f"{n}" for n, (_, _, _, is_taken) in enumerate(artifacts) if is_taken}
    sweep = sweep_of(budget, blobs, holdings, in_use=frozenset(in_use))
    here, left = dict(blobs), {each.digest: each for each in holdings}
    order: list[tuple[int, str]] = []
    while (step := sweep.next_step()) is not None:
        assert sum(here.values()) > budget, "not one more than must go"
        if isinstance(step, RemoveArtifact) and step.digest in taken:
            sweep.refused(step, "leased")
            continue
        if isinstance(step, DropBlob):
            assert not order, "unreferenced blobs go first"
            del here[step.sha256]
        elif isinstance(step, RemoveArtifact):
            gone = left.pop(step.digest)
            assert gone.protection is None
            order.append((gone.last_accessed_ms, gone.digest))
            for blob in step.blobs:
                del here[blob]
        sweep.done(step)
        needed = set().union(*(each.blobs for each in left.values())) | in_use
        assert needed & blobs.keys() <= here.keys(), "what somebody needs survives"
    report = sweep.report()
    assert order == sorted(order)
    assert report.before_bytes == sum(blobs.values())
    assert report.after_bytes == sum(here.values()) == report.before_bytes - report.reclaimed_bytes
    assert report.budget_unsatisfied_bytes == max(0, report.after_bytes - budget)
    assert list(report.deleted_artifacts) == [digest for _, digest in order]
    assert not set(report.deleted_artifacts) & (set(report.skipped_artifacts) | taken)
    if report.budget_unsatisfied_bytes:
        assert left.keys() == report.skipped_artifacts.keys(), "whatever stayed has its reason"


# -- the store ----------------------------------------------------------------------------------------------------

ONE, TWO, THREE = noise(50_000, 1), noise(70_000, 2), noise(30_000, 3)


@pytest.fixture
def store(tmp_path: Path) -> FileArtifactStore:
    return FileArtifactStore(tmp_path / "cache", environ={})


def pulled(
    store: FileArtifactStore, folder: Path, name: str, files: dict[str, bytes], accessed: int
) -> ResolvedArtifact:
    folder.mkdir(exist_ok=True)
    for path, data in files.items():
        (folder / path).write_bytes(data)
    artifact = resolved(f"file:{folder}", files, variant=name)
    store.ensure(artifact, intent="explicit", policy="on_demand")
    record = store.paths.record(artifact.digest)
    record.write_text(json.dumps({**json.loads(record.read_text()), "last_accessed_ms": accessed}))
    return artifact


def test_a_cache_that_is_not_there(store: FileArtifactStore) -> None:
    assert store.collect(0, {}) == GcReport(0, 0, 0, (), {}, 0)
    assert not store.paths.root.exists()


def test_the_oldest_goes_and_what_it_shared_stays(tmp_path: Path, store: FileArtifactStore) -> None:
    old = pulled(store, tmp_path / "source", "old", {"a.gguf": ONE, "s.gguf": THREE}, 1)
    young = pulled(store, tmp_path / "source", "young", {"b.gguf": TWO, "s.gguf": THREE}, 2)
    report = store.collect(len(TWO) + len(THREE), {})
    assert report == GcReport(150_000, 100_000, 50_000, (old.digest,), {}, 0)
    assert isinstance(store.state(young), Ready)
    store.verify(young)
    assert store.inventory()[0].digest == young.digest
    assert {path.name for path in store.paths.blobs.iterdir()} == {sha256(TWO), sha256(THREE)}
    assert not store.paths.snapshot(old.digest).exists()


def test_every_protection(tmp_path: Path, store: FileArtifactStore) -> None:
    names = ("configured", "pinned", "leased", "locked", "downloading", "free")
    artifacts = {
        name: pulled(store, tmp_path / "source", name, {f"{name}.gguf": noise(1000, seed)}, seed)
        for seed, name in enumerate(names)
    }
    digests = {name: artifact.digest for name, artifact in artifacts.items()}
    plan = store.paths.plan(digests["downloading"])
    plan.parent.mkdir()
    plan.write_text("{}")
    with (
        store.lease(digests["leased"]),
        locks.exclusive(store.paths.pull_lock(digests["locked"])),
        locks.exclusive(store.paths.pull_lock(digests["downloading"])),
    ):
        report = store.collect(0, {digests["configured"]: "configured", digests["pinned"]: "pinned"})
    assert report.deleted_artifacts == (digests["free"],)
    assert report.skipped_artifacts == {digests[name]: name for name in names if name != "free"}
    assert report.budget_unsatisfied_bytes == report.after_bytes == 5000 + plan.stat().st_size
    for name in names:
        expected = Missing if name == "free" else Ready
        assert isinstance(store.state(artifacts[name]), expected), name


def test_leftovers_of_killed_pulls_go_before_any_artifact(tmp_path: Path, store: FileArtifactStore) -> None:
    kept = pulled(store, tmp_path / "source", "kept", {"a.gguf": ONE}, 1)
    store.paths.blob(sha256(TWO)).write_bytes(TWO)
    uncommitted = store.paths.snapshot("1" * 64)
    uncommitted.mkdir()
    (uncommitted / "b.gguf").hardlink_to(store.paths.blob(sha256(TWO)))
    report = store.collect(len(ONE), {})
    assert (report.deleted_artifacts, report.reclaimed_bytes) == ((), len(TWO))
    assert not uncommitted.exists(), "its link would have kept the bytes on the disk"
    assert isinstance(store.state(kept), Ready)


def test_a_record_that_cannot_be_read_goes_first_but_takes_nothing_of_others(
    tmp_path: Path, store: FileArtifactStore
) -> None:
    sound = pulled(store, tmp_path / "source", "sound", {"s.gguf": THREE}, 1)
    broken = pulled(store, tmp_path / "source", "broken", {"a.gguf": ONE, "s.gguf": THREE}, 2)
    store.paths.record(broken.digest).write_text("{")
    assert store.collect(len(THREE), {}).deleted_artifacts == (broken.digest,)
    store.verify(sound)


def test_a_pull_that_runs_beside_a_collection_ends_well(tmp_path: Path) -> None:
    with Hub({"Org/Repo/a.gguf": ONE, "Org/Repo/b.gguf": TWO}) as hub, ThreadPoolExecutor(1) as pool:
        store = FileArtifactStore(tmp_path, hub_url=hub.url, environ={})
        first = resolved("hf:Org/Repo", {"a.gguf": ONE}, variant="first")
        both = resolved("hf:Org/Repo", {"a.gguf": ONE, "b.gguf": TWO}, variant="both")
        store.ensure(first, intent="explicit", policy="on_demand")
        hub.fault("drip", chunk=10_000, pause=0.02)
        under_way = threading.Event()
        pulling = pool.submit(
            store.ensure, both, intent="explicit", policy="on_demand", progress=lambda step: under_way.set()
        )
        assert under_way.wait(10)
        while not pulling.done():
            store.collect(0, {both.digest: "just_pulled"})
        pulling.result(20)
        store.verify(both)
        assert isinstance(store.state(first), Ready), "without it nothing would have been freed"
        assert store.collect(0, {}).deleted_artifacts == (first.digest, both.digest)
