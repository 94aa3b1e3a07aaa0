"""The one reload transaction of the process, for the admin route, SIGHUP and the file watcher.

Everything that can refuse runs before the model host commits; routes are published in the same step of the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping

from sbproxy.admin.ports import DriftReport, ReloadOutcome
from sbproxy.catalog.core.model import CatalogModel
from sbproxy.config.core.changes import restart_required
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.config.load import Loaded
from sbproxy.daemon.checks import load_checked
from sbproxy.daemon.foundation import Foundation
from sbproxy.errors import SbproxyError
from sbproxy.errors.admin import ReloadInFlight, ReloadUnavailable
from sbproxy.errors.config import ConfigUnreadable, RestartRequired
from sbproxy.gateway.core.providers import ModelFacts
from sbproxy.gateway.core.routes import RouteTable, compile_routes
from sbproxy.modelhost.host import ModelHost
from sbproxy.observe.metrics import Metrics

_log = logging.getLogger(__name__)


def routes_of(loaded: Loaded, foundation: Foundation) -> RouteTable:
    """The data plane's routes of a configuration; raises UnusableProvider."""
    models = foundation.catalog.models
    facts = {
        name: _facts(models[config.model], config)  # type: ignore[index]  # ids are plain text in the file
        for name, config in loaded.config.proxy.model_host.deployments.items()
    }
    return compile_routes(loaded.config.origins, revision=loaded.revision, models=facts)


def _facts(model: CatalogModel, config: DeploymentConfig) -> ModelFacts:
    bounds = [bound for bound in (model.context_length, config.max_context) if bound is not None]
    return ModelFacts(model.modality, min(bounds, default=None))


class ConfigReloader:
    """Holds what is loaded now. ``publish`` takes the routes and the secrets' owner of an accepted candidate."""

    def __init__(
        self,
        loaded: Loaded,
        foundation: Foundation,
        *,
        environ: Mapping[str, str],
        host: ModelHost,
        metrics: Metrics,
        publish: Callable[[RouteTable, Loaded], None],
    ) -> None:
        self.loaded = loaded
        self.foundation = foundation
        self.config_path: str | None = str(loaded.path)
        self._environ = environ
        self._host = host
        self._metrics = metrics
        self._publish = publish
        self._started_by = ""
        self._running: asyncio.Task[ReloadOutcome] | None = None

    async def boot(self) -> None:
        """The first commit: the same steps on what was loaded at start. Raises what refuses it."""
        await self._apply(self.loaded, self.foundation)

    async def reload(self, started_by: str = "the admin API") -> ReloadOutcome:
        """Read the file again and apply it whole, or raise and change nothing.

        A caller that leaves does not stop a transaction that has begun; ``close`` does.
        """
        if self._running is not None:
            raise ReloadInFlight(self._started_by)
        self._started_by = started_by
        running = self._running = asyncio.create_task(self._reload(started_by), name="reload")
        running.add_done_callback(self._ended)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():
                raise ReloadUnavailable("the daemon is stopping") from None
            raise

    async def reload_if_changed(self) -> None:
        """What the file watcher calls: nothing when the bytes are those that are loaded; a refusal is only logged."""
        await self._idle()
        try:
            report = await self.drift()
        except SbproxyError as error:
            _log.warning("config_watch: %s", error)
            return
        if report.on_disk_content_hash != report.loaded_content_hash:
            await self._reload_logged("the file watcher")

    async def reload_on_signal(self) -> None:
        """SIGHUP: whatever the bytes, and after a reload that runs already, for that one may have read too early."""
        await self._idle()
        await self._reload_logged("SIGHUP")

    async def close(self) -> None:
        """Undo a reload that runs, and wait until it is undone."""
        running = self._running
        if running is not None:
            running.cancel()
            await asyncio.wait((running,))

    async def _idle(self) -> None:
        while self._running is not None:
            await asyncio.wait((self._running,))

    async def _reload_logged(self, started_by: str) -> None:
        try:
            await self.reload(started_by)
        except ReloadInFlight as error:
            _log.warning("%s: %s", started_by, error)
        except SbproxyError:
            return  # said by the transaction itself

    def _ended(self, running: asyncio.Task[ReloadOutcome]) -> None:
        self._running = None
        if not running.cancelled():
            running.exception()  # seen, also when nobody waits for it any more

    async def _reload(self, started_by: str) -> ReloadOutcome:
        try:
            loaded, foundation = await asyncio.to_thread(self._candidate)
            degraded = await self._apply(loaded, foundation)
        except SbproxyError as error:
            self._metrics.config_reloaded("failure")
            _log.error("config_reload_failed started_by=%r: %s", started_by, error)
            raise
        self._metrics.config_reloaded("success")
        _log.info("config_reloaded started_by=%r revision=%s", started_by, loaded.revision)
        return ReloadOutcome(loaded.revision, time.time(), degraded)

    async def drift(self) -> DriftReport:
        """The file on disk beside what was loaded from it; raises ConfigUnreadable."""
        return await asyncio.to_thread(self._compare)

    def _candidate(self) -> tuple[Loaded, Foundation]:
        checked = load_checked(self.loaded.path, self._environ)
        loaded = checked.loaded
        fields = restart_required(self.loaded.config, loaded.config)
        if fields:
            raise RestartRequired(fields)
        return loaded, Foundation.of(checked, self._environ)

    async def _apply(self, loaded: Loaded, foundation: Foundation) -> tuple[str, ...]:
        routes = routes_of(loaded, foundation)
        prepared = await self._host.prepare(
            foundation.catalog,
            loaded.config.proxy.model_host,
            store=foundation.store,
            drivers=foundation.drivers if self._engines_differ(loaded, foundation) else None,
        )
        report = await prepared.commit()
        # No await between the commit and here: no request meets new deployments with old routes or the reverse.
        self._publish(routes, loaded)
        self.loaded, self.foundation = loaded, foundation
        return report.degraded

    def _engines_differ(self, loaded: Loaded, foundation: Foundation) -> bool:
        """Drivers that would be the same stay, with what they have learnt of their binaries."""
        engines = loaded.config.proxy.model_host.engines
        return (
            engines != self.loaded.config.proxy.model_host.engines
            or foundation.cache_root != self.foundation.cache_root
        )

    def _compare(self) -> DriftReport:
        try:
            data = self.loaded.path.read_bytes()
        except OSError as error:
            raise ConfigUnreadable(str(self.loaded.path), error.strerror or str(error)) from error
        return DriftReport(
            config_path=str(self.loaded.path),
            loaded_revision=self.loaded.revision,
            loaded_content_hash=self.loaded.content_hash,
            on_disk_content_hash=hashlib.sha256(data).hexdigest()[:12],
            on_disk_size_bytes=len(data),
        )
