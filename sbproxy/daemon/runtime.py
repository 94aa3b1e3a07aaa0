"""What is applied now, and the one way to apply something else: host and routes together, or nothing.

Shared by the reload transaction and the replacement of the deployment map, which exclude each other by ``changing``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from sbproxy.catalog.core.model import CatalogModel, ModelId
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.config.load import Loaded
from sbproxy.daemon.foundation import Foundation
from sbproxy.gateway.core.providers import ModelFacts
from sbproxy.gateway.core.routes import RouteTable, compile_routes
from sbproxy.modelhost.host import ModelHost
from sbproxy.modelhost.reload import CommitReport, Prepared

Deployments = Mapping[str, DeploymentConfig]
Publish = Callable[[RouteTable, Loaded], None]


def routes_of(loaded: Loaded, foundation: Foundation, deployments: Deployments | None = None) -> RouteTable:
    """The data plane's routes of a configuration; raises UnusableProvider. ``deployments``: where not the file's."""
    models = foundation.catalog.models
    desired = loaded.config.proxy.model_host.deployments if deployments is None else deployments
    facts = {
        name: _facts(model, config)
        for name, config in desired.items()
        if (model := models.get(ModelId(config.model))) is not None
    }
    keys_required = loaded.config.proxy.key_management.inbound.require
    return compile_routes(loaded.config.origins, revision=loaded.revision, models=facts, keys_required=keys_required)


def _facts(model: CatalogModel, config: DeploymentConfig) -> ModelFacts:
    bounds = [bound for bound in (model.context_length, config.max_context) if bound is not None]
    return ModelFacts(config.modality or model.modality, min(bounds, default=None), config.concurrency)


class Runtime:
    """``publish`` takes the routes and the owner of the secrets of what was committed."""

    def __init__(self, loaded: Loaded, foundation: Foundation, *, host: ModelHost, publish: Publish) -> None:
        self.loaded = loaded
        self.foundation = foundation
        self.changing = asyncio.Lock()
        """The commit lock: held from the first look at what is applied until the commit has ended."""
        self.host = host
        self._publish = publish

    async def prepare(self, loaded: Loaded, foundation: Foundation, deployments: Deployments) -> Candidate:
        """Publishes nothing. Raises UnusableProvider and what ``ModelHost.prepare`` raises."""
        routes = routes_of(loaded, foundation, deployments)
        prepared = await self.host.prepare(
            foundation.catalog,
            loaded.config.proxy.model_host.model_copy(update={"deployments": dict(deployments)}),
            store=foundation.store,
            drivers=foundation.drivers if self._engines_differ(loaded, foundation) else None,
        )
        return Candidate(self, prepared, loaded, foundation, routes)

    def applied(self, loaded: Loaded, foundation: Foundation, routes: RouteTable) -> None:
        """Called by a candidate in the step of its commit."""
        self._publish(routes, loaded)
        self.loaded, self.foundation = loaded, foundation

    def _engines_differ(self, loaded: Loaded, foundation: Foundation) -> bool:
        """Drivers that would be the same stay, with what they have learnt of their binaries."""
        engines = loaded.config.proxy.model_host.engines
        return (
            engines != self.loaded.config.proxy.model_host.engines
            or foundation.cache_root != self.foundation.cache_root
        )


class Candidate:
    """Ends with exactly one of ``commit`` and ``abort``."""

    def __init__(
        self, runtime: Runtime, prepared: Prepared, loaded: Loaded, foundation: Foundation, routes: RouteTable
    ) -> None:
        self._runtime = runtime
        self._prepared = prepared
        self._loaded = loaded
        self._foundation = foundation
        self._routes = routes

    async def commit(self, *, keep_failed: bool = False) -> CommitReport:
        """See ``Prepared.commit``."""
        report = await self._prepared.commit(keep_failed=keep_failed)
        # No await between the commit and here: no request meets new deployments with old routes or the reverse.
        self._runtime.applied(self._loaded, self._foundation, self._routes)
        return report

    async def abort(self) -> None:
        await self._prepared.abort()
