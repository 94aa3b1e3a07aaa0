"""The replacement of the deployment map as one transaction: check, prepare, store, activate; every way out of it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sbproxy.config.load import Loaded, load_text
from sbproxy.daemon.desired_state import DesiredState, stored_deployments, wanted
from sbproxy.daemon.foundation import Foundation
from sbproxy.daemon.runtime import Runtime
from sbproxy.errors.admin import AuthorityReadOnly, ReloadUnavailable
from sbproxy.errors.artifacts import ManualArtifactMissing, TransportFailed
from sbproxy.errors.catalog import UnknownModel
from sbproxy.errors.modelhost import (
    CatalogFenced,
    DesiredStoreFailed,
    InvalidDesired,
    RevisionConflict,
    RuntimeCommitFailed,
)
from sbproxy.gateway.core.routes import RouteTable
from sbproxy.modelhost.core.desired_document import DeploymentDraft, Replacement, RevisionDocument
from sbproxy.modelhost.desired_store import SqliteDesiredStore
from support.model_host_parts import World, catalog, eventually, model

CONFIG = """
proxy:
  model_host:
    authority: {authority}
    store_path: desired.sqlite3
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - {{name: local, provider_type: managed_model, deployment: routed}}
"""


def draft(**fields: Any) -> DeploymentDraft:
    return DeploymentDraft(**({"model": "one", "cold_start": "wait"} | fields))


def replacement(expected: int | None, **deployments: DeploymentDraft) -> Replacement:
    return Replacement(expected, deployments)


def loaded(folder: Path, authority: str = "admin_managed") -> Loaded:
    text = CONFIG.format(authority=authority)
    if authority == "file_managed":
        text = text.replace("    store_path", "    deployments: {routed: {model: one}}\n    store_path")
    return load_text(text, path=folder / "sb.yml", environ={})


def held(store: SqliteDesiredStore) -> sqlite3.Connection:
    """The store as another process would hold it, until the connection is closed."""
    holder = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    return holder


@dataclass
class Transactions:
    """A runtime over scripted parts and a real store."""

    world: World
    foundation: Foundation
    runtime: Runtime
    desired: DesiredState
    store: SqliteDesiredStore
    published: list[RouteTable] = field(default_factory=list)

    @property
    def running(self) -> dict[str, str]:
        return {row.deployment: row.state for row in self.world.host.status()}

    async def revision(self) -> int | None:
        stored = await asyncio.to_thread(self.store.read)
        return stored.revision if stored is not None else None


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Transactions]:
    world = await asyncio.to_thread(World, tmp_path)
    foundation = Foundation(world.catalog, tmp_path, world.store, {}, world.devices, None)  # type: ignore[arg-type]
    published: list[RouteTable] = []
    runtime = Runtime(
        await asyncio.to_thread(loaded, tmp_path),
        foundation,
        host=world.host,
        publish=lambda routes, _: published.append(routes),
    )
    store = SqliteDesiredStore(tmp_path / "desired.sqlite3")
    await asyncio.to_thread(store.create)
    made = Transactions(world, foundation, runtime, DesiredState(runtime), store, published)
    yield made
    await made.desired.close()
    await world.close()


async def test_a_map_is_stored_published_and_routed(parts: Transactions) -> None:
    done = await parts.desired.replace(replacement(None, routed=draft(), b=draft(warm=True)))
    assert (done.revision, done.added) == (1, ("b", "routed"))
    assert parts.running == {"routed": "configured", "b": "ready"}
    document = await parts.desired.read()
    assert (document.revision, document.content_digest) == (1, done.content_digest)
    provider = parts.published[-1].origin_for("localhost").provider_for("routed")  # type: ignore[union-attr]
    assert provider.context_window == 1024, "the routes know the model that was put behind them"  # type: ignore[union-attr]

    done = await parts.desired.replace(replacement(1, routed=draft(), c=draft()))
    assert (done.revision, done.added, done.removed, done.preserved) == (2, ("c",), ("b",), ("routed",))
    done = await parts.desired.replace(replacement(2, routed=draft(max_concurrency=2), c=draft()))
    assert (done.changed, done.preserved) == (("routed",), ("c",))


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (replacement(None, a=draft(replicas=0)), InvalidDesired),
        (replacement(None, a=draft(model="none")), UnknownModel),
        (replacement(0, a=draft()), RevisionConflict),
        (replacement(None, a=draft(pull="manual", warm=True)), ManualArtifactMissing),
    ],
)
async def test_what_is_refused_before_the_write_writes_nothing(
    parts: Transactions, asked: Replacement, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await parts.desired.replace(asked)
    assert (await parts.revision(), parts.running, parts.published) == (None, {}, [])
    assert (await parts.desired.replace(replacement(None, a=draft()))).revision == 1


async def test_a_pull_that_fails_writes_nothing(parts: Transactions) -> None:
    parts.world.store.failures.append(TransportFailed("one:q4", "the line is cut"))
    with pytest.raises(TransportFailed):
        await parts.desired.replace(replacement(None, a=draft(pull="on_boot")))
    assert (await parts.revision(), parts.running) == (None, {})


async def test_the_route_fence_reads_the_stored_map(parts: Transactions) -> None:
    await parts.desired.replace(replacement(None, a=draft()))
    await parts.desired.replace(replacement(1, routed=draft()))
    with pytest.raises(InvalidDesired, match="provider"):
        await parts.desired.replace(replacement(2, a=draft()))
    with pytest.raises(InvalidDesired, match="provider"):
        await parts.desired.replace(replacement(99, a=draft()))


async def test_another_process_that_is_faster_wins_and_the_staged_work_goes(parts: Transactions) -> None:
    parts.world.store.gate.clear()
    losing = asyncio.create_task(parts.desired.replace(replacement(None, a=draft(pull="on_boot"))))
    await eventually(lambda: "a" in parts.running)
    await asyncio.to_thread(parts.store.replace, None, RevisionDocument.of(1, "r1", {"b": draft()}))
    parts.world.store.gate.set()
    with pytest.raises(RevisionConflict) as caught:
        await losing
    assert (caught.value.expected_revision, caught.value.actual_revision) == (None, 1)
    assert parts.running == {}
    assert (await parts.desired.replace(replacement(1, b=draft()))).added == ("b",)


async def test_a_wrong_map_is_told_while_another_is_prepared(parts: Transactions) -> None:
    parts.world.store.gate.clear()
    slow = asyncio.create_task(parts.desired.replace(replacement(None, a=draft(pull="on_boot"))))
    await eventually(lambda: "a" in parts.running)
    with pytest.raises(UnknownModel):
        await asyncio.wait_for(parts.desired.replace(replacement(None, a=draft(model="none"))), 2)
    second = asyncio.create_task(parts.desired.replace(replacement(None, b=draft())))
    parts.world.store.gate.set()
    assert (await slow).revision == 1
    with pytest.raises(RevisionConflict):
        await second


async def test_a_caller_that_leaves_stops_nothing(parts: Transactions) -> None:
    parts.world.store.gate.clear()
    caller = asyncio.create_task(parts.desired.replace(replacement(None, a=draft(pull="on_boot"))))
    await eventually(lambda: "a" in parts.running)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    parts.world.store.gate.set()
    while await parts.revision() is None:  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.01)


async def test_closing_undoes_what_is_not_stored_yet(parts: Transactions) -> None:
    parts.world.store.gate.clear()
    asked = asyncio.create_task(parts.desired.replace(replacement(None, a=draft(pull="on_boot"))))
    await eventually(lambda: "a" in parts.running)
    closing = asyncio.create_task(parts.desired.close())
    parts.world.store.gate.set()
    await closing
    with pytest.raises(ReloadUnavailable):
        await asked
    assert await parts.revision() is None
    with pytest.raises(ReloadUnavailable):
        await parts.desired.replace(replacement(None, a=draft()))


async def test_closing_during_the_write_waits_for_what_it_does(parts: Transactions) -> None:
    holder = await asyncio.to_thread(held, parts.store)
    asked = asyncio.create_task(parts.desired.replace(replacement(None, a=draft())))
    await eventually(lambda: "a" in parts.running)
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(parts.desired.close())
    await asyncio.sleep(0.1)
    await asyncio.to_thread(holder.close)
    await closing
    with pytest.raises(RuntimeCommitFailed) as caught:
        await asked
    assert (caught.value.revision, await parts.revision()) == (1, 1)
    assert parts.running == {}


async def test_a_store_that_is_held_writes_nothing_and_frees_the_host(
    parts: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbproxy.modelhost.desired_store.BUSY_S", 0.1)
    holder = await asyncio.to_thread(held, parts.store)
    with pytest.raises(DesiredStoreFailed):
        await parts.desired.replace(replacement(None, a=draft()))
    await asyncio.to_thread(holder.close)
    assert parts.running == {}
    assert (await parts.desired.replace(replacement(None, a=draft()))).revision == 1


async def test_a_failed_activation_is_durable_and_restores_what_a_recreate_stopped(parts: Transactions) -> None:
    await parts.desired.replace(replacement(None, a=draft(warm=True, rollout="recreate")))
    await parts.world.until("a", "ready")
    parts.world.driver.script.extend(["crash", "ready"])
    with pytest.raises(RuntimeCommitFailed) as caught:
        await parts.desired.replace(replacement(1, a=draft(warm=True, rollout="recreate", max_concurrency=2)))
    assert (caught.value.revision, await parts.revision()) == (2, 2)
    assert caught.value.content_digest == (await parts.desired.read()).content_digest
    await eventually(lambda: parts.running == {"a": "ready"})
    assert [row.max_concurrency for row in parts.world.host.status()] == [1]
    done = await parts.desired.replace(replacement(2, a=draft(warm=True, rollout="recreate", max_concurrency=2)))
    assert (done.revision, done.changed) == (3, ("a",))


async def test_another_authority_is_read_only(parts: Transactions, tmp_path: Path) -> None:
    parts.runtime.loaded = await asyncio.to_thread(loaded, tmp_path, "file_managed")
    with pytest.raises(AuthorityReadOnly):
        await parts.desired.replace(replacement(None, a=draft()))
    assert (await parts.desired.read()).authority == "file_managed"


# --- what a start and a reload apply ----------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> SqliteDesiredStore:
    made = SqliteDesiredStore(tmp_path / "desired.sqlite3")
    made.create()
    return made


def foundation_of(revision: str, *names: str) -> Foundation:
    return Foundation(catalog(*map(model, names), revision=revision), Path("/"), None, {}, None, None)  # type: ignore[arg-type]


def test_the_file_is_read_where_it_is_the_authority(tmp_path: Path) -> None:
    filed = loaded(tmp_path, "file_managed")
    assert set(stored_deployments(filed.config.proxy.model_host)) == {"routed"}
    assert set(wanted(filed, foundation_of("r1", "one"), starting=True).deployments) == {"routed"}
    assert not (tmp_path / "desired.sqlite3").exists()


def test_commands_without_a_daemon_read_the_same_map(tmp_path: Path) -> None:
    config = loaded(tmp_path).config.proxy.model_host
    assert stored_deployments(config) == {}
    assert not (tmp_path / "desired.sqlite3").exists()
    store = SqliteDesiredStore(tmp_path / "desired.sqlite3")
    store.create()
    store.replace(None, RevisionDocument.of(1, "r1", {"a": draft(max_concurrency=3)}))
    assert stored_deployments(config)["a"].max_concurrency == 3


@pytest.mark.parametrize("starting", [True, False])
def test_an_unchanged_catalog_takes_the_map_as_it_is(tmp_path: Path, store: SqliteDesiredStore, starting: bool) -> None:
    store.replace(None, RevisionDocument.of(1, "r1", {"a": draft()}))
    desired = wanted(loaded(tmp_path), foundation_of("r1", "one"), starting=starting)
    assert (set(desired.deployments), desired.adopt) == ({"a"}, None)


def test_a_reload_is_fenced_by_a_stored_map(tmp_path: Path, store: SqliteDesiredStore) -> None:
    store.replace(None, RevisionDocument.of(1, "r1", {"a": draft()}))
    with pytest.raises(CatalogFenced) as caught:
        wanted(loaded(tmp_path), foundation_of("r2", "one", "two"), starting=False)
    assert (caught.value.stored_catalog, caught.value.wanted_catalog, caught.value.deployments) == ("r1", "r2", ("a",))


def test_a_start_needs_every_name_in_the_new_catalog(tmp_path: Path, store: SqliteDesiredStore) -> None:
    store.replace(None, RevisionDocument.of(1, "r1", {"a": draft()}))
    with pytest.raises(CatalogFenced):
        wanted(loaded(tmp_path), foundation_of("r2", "two"), starting=True)
    desired = wanted(loaded(tmp_path), foundation_of("r2", "one"), starting=True)
    kept = store.read()
    assert kept is not None
    assert kept.revision == 1, "nothing is written before the candidate is prepared"
    assert desired.adopt is not None
    desired.adopt()
    stored = store.read()
    assert stored is not None
    assert (stored.revision, stored.catalog_revision, set(stored.deployments)) == (2, "r2", {"a"})


def test_an_empty_map_adopts_whatever_catalog_comes(tmp_path: Path, store: SqliteDesiredStore) -> None:
    assert wanted(loaded(tmp_path), foundation_of("r2", "two"), starting=False).adopt is None
    store.replace(None, RevisionDocument.of(1, "r1", {}))
    desired = wanted(loaded(tmp_path), foundation_of("r2", "two"), starting=False)
    assert desired.adopt is not None
    store.replace(1, RevisionDocument.of(2, "r1", {"a": draft()}))
    with pytest.raises(RevisionConflict):
        desired.adopt()
