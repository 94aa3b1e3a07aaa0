"""Which deployments the host is to run: those of sb.yml, or under ``admin_managed`` those of the durable store.

Carries out the replacement of the stored map as one transaction: check, prepare, store, activate (document 1,
"Authenticated catalog and local deployment API"). What a map may say is decided in ``modelhost.core``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sbproxy.admin.ports import DesiredMap, Replaced
from sbproxy.config.core.model_host import DeploymentConfig, ModelHostConfig
from sbproxy.config.load import Loaded
from sbproxy.daemon.foundation import Foundation
from sbproxy.daemon.runtime import Candidate, Runtime
from sbproxy.errors.admin import AuthorityReadOnly, ReloadUnavailable
from sbproxy.errors.catalog import CatalogError
from sbproxy.errors.modelhost import CatalogFenced, RevisionConflict, RuntimeCommitFailed
from sbproxy.modelhost.core.desired_document import Replacement, RevisionDocument
from sbproxy.modelhost.core.draft_rules import (
    configs_of,
    refuse_beyond_node,
    refuse_orphaned_routes,
    refuse_unknown,
)
from sbproxy.modelhost.desired_store import SqliteDesiredStore

_log = logging.getLogger(__name__)

ADMIN_MANAGED = "admin_managed"


def store_of(config: ModelHostConfig) -> SqliteDesiredStore | None:
    """The store that owns the deployments of a configuration; None where the file does."""
    if config.authority != ADMIN_MANAGED or config.store_path is None:
        return None
    return SqliteDesiredStore(Path(config.store_path))


def stored_deployments(config: ModelHostConfig) -> dict[str, DeploymentConfig]:
    """The desired map, whoever owns it, for commands without a daemon. Blocking; raises DesiredStoreFailed."""
    store = store_of(config)
    if store is None:
        return dict(config.deployments)
    stored = store.read()
    return configs_of(stored.deployments) if stored is not None else {}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The map of a configuration. ``adopt`` is what has to be called before its commit: it stores the revision that
    moves the map to another catalog. Blocking; raises RevisionConflict or DesiredStoreFailed."""

    deployments: dict[str, DeploymentConfig]
    adopt: Callable[[], None] | None = None


def wanted(loaded: Loaded, foundation: Foundation, *, starting: bool) -> Wanted:
    """Read the map that a start or a reload is to apply. Blocking.

    Raises DesiredStoreFailed; CatalogFenced where the catalog would change under a stored map. A start, with nothing
    resident yet, only insists that the new catalog knows every name in it.
    """
    config = loaded.config.proxy.model_host
    store = store_of(config)
    if store is None:
        return Wanted(dict(config.deployments))
    store.create()
    stored = store.read()
    if stored is None:
        return Wanted({})
    deployments = configs_of(stored.deployments)
    catalog = foundation.catalog
    if stored.catalog_revision == catalog.catalog_revision:
        return Wanted(deployments)
    if deployments:
        fenced = CatalogFenced(stored.catalog_revision, catalog.catalog_revision, tuple(sorted(deployments)))
        if not starting:
            raise fenced
        try:
            refuse_unknown(deployments, catalog)
        except CatalogError as error:
            raise fenced from error
    moved = RevisionDocument.of(stored.revision + 1, catalog.catalog_revision, stored.deployments)

    def adopt() -> None:
        store.replace(stored.revision, moved)
        _log.warning(
            "deployment_store_adopted_catalog revision=%d from=%s to=%s",
            moved.revision,
            stored.catalog_revision,
            moved.catalog_revision,
        )

    return Wanted(deployments, adopt)


@dataclass(frozen=True, slots=True)
class _Checked:
    """A replacement that this node could take on, beside what is stored."""

    store: SqliteDesiredStore
    stored: RevisionDocument | None
    deployments: dict[str, DeploymentConfig]


class DesiredState:
    """The deployment map as the admin API reads and replaces it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._running: set[asyncio.Task[Replaced]] = set()
        self._closed = False

    @property
    def authority(self) -> str:
        return self._runtime.loaded.config.proxy.model_host.authority

    async def read(self) -> DesiredMap:
        """Under ``admin_managed`` what is durable now, also where another process wrote it. Raises
        DesiredStoreFailed."""
        config = self._runtime.loaded.config.proxy.model_host
        store = store_of(config)
        if store is None:
            published = self._runtime.host.config.deployments
            plain = {name: each.model_dump(mode="json") for name, each in sorted(published.items())}
            return DesiredMap(config.authority, plain)
        stored = await asyncio.to_thread(store.read)
        if stored is None:
            return DesiredMap(config.authority, {})
        return DesiredMap(config.authority, stored.shown, stored.revision, stored.content_digest)

    async def replace(self, replacement: Replacement) -> Replaced:
        """Make ``replacement`` the stored and the running map, or raise and change neither.

        Raises AuthorityReadOnly, InvalidDesired, UnknownModel, UnknownVariant, RevisionConflict, DesiredStoreFailed,
        what ``ModelHost.prepare`` raises, and RuntimeCommitFailed, after which the map is stored but does not run.
        A caller that leaves does not stop a transaction that has begun; ``close`` does.
        """
        if self._closed:
            raise ReloadUnavailable("the daemon is stopping")
        running = asyncio.create_task(self._replace(replacement), name="replace-deployments")
        self._running.add(running)
        running.add_done_callback(self._ended)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():
                raise ReloadUnavailable("the daemon is stopping") from None
            raise

    async def close(self) -> None:
        """Undo what has not been stored yet, and wait until it is undone."""
        self._closed = True
        for running in self._running:
            running.cancel()
        if self._running:
            await asyncio.wait(set(self._running))

    def _ended(self, running: asyncio.Task[Replaced]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # seen, also when nobody waits for it any more

    async def _replace(self, replacement: Replacement) -> Replaced:
        # Once before the lock, so that a wrong map is told at once while another candidate still pulls.
        await asyncio.to_thread(self._check, replacement)
        runtime = self._runtime
        async with runtime.changing:
            checked = await asyncio.to_thread(self._check, replacement)
            actual = checked.stored.revision if checked.stored is not None else None
            if actual != replacement.expected_revision:
                raise RevisionConflict(replacement.expected_revision, actual)
            catalog_revision = runtime.foundation.catalog.catalog_revision
            document = await asyncio.to_thread(
                RevisionDocument.of, (actual or 0) + 1, catalog_revision, replacement.deployments
            )
            candidate = await runtime.prepare(runtime.loaded, runtime.foundation, checked.deployments)
            try:
                await _store(checked.store, actual, document)
            except BaseException:
                await candidate.abort()
                raise
            return await _activate(candidate, document)

    def _check(self, replacement: Replacement) -> _Checked:
        """Blocking. In the order of contracts section 14."""
        config, foundation = self._runtime.loaded.config, self._runtime.foundation
        store = store_of(config.proxy.model_host)
        if store is None:
            raise AuthorityReadOnly(config.proxy.model_host.authority)
        deployments = configs_of(replacement.deployments)
        refuse_beyond_node(deployments, len(foundation.devices.probe().accelerated))
        refuse_unknown(deployments, foundation.catalog)
        stored = store.read()
        refuse_orphaned_routes(stored.deployments if stored is not None else {}, deployments, config.origins)
        return _Checked(store, stored, deployments)


async def _store(store: SqliteDesiredStore, expected: int | None, document: RevisionDocument) -> None:
    """The durable compare-and-swap. Once begun it is waited for: what it did decides what a cancellation means."""
    writing = asyncio.ensure_future(asyncio.to_thread(store.replace, expected, document))
    cancelled = False
    while not writing.done():
        try:
            await asyncio.wait((writing,))
        except asyncio.CancelledError:
            cancelled = True
    writing.result()
    if cancelled:
        _log.error("model_deployments_not_activated revision=%d: the daemon is stopping", document.revision)
        raise RuntimeCommitFailed(document.revision, document.content_digest)


async def _activate(candidate: Candidate, document: RevisionDocument) -> Replaced:
    try:
        report = await candidate.commit()
    except (Exception, asyncio.CancelledError) as error:
        # Whatever it was, the caller has to learn that the revision is durable.
        _log.exception("model_deployments_not_activated revision=%d", document.revision)
        raise RuntimeCommitFailed(document.revision, document.content_digest) from error
    _log.info("model_deployments_replaced revision=%d digest=%s", document.revision, document.content_digest)
    return Replaced(
        document.revision, document.content_digest, report.added, report.changed, report.removed, report.preserved
    )
