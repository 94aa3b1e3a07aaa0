"""The model host as the admin API sees it: its operations, and the inventory of the store with what is resident."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sbproxy.admin.ports import DesiredState, Inventory, ResetDone
from sbproxy.catalog.core.model import Catalog
from sbproxy.daemon.reload import ConfigReloader
from sbproxy.modelhost.core.jobs import JobId, StopKind
from sbproxy.modelhost.core.status import StatusRow
from sbproxy.modelhost.host import ModelHost


class HostControl:
    """Implements ``sbproxy.admin.ports.ModelHostControl``."""

    def __init__(self, host: ModelHost, reloader: ConfigReloader) -> None:
        self._host = host
        self._reloader = reloader

    def status(self) -> Sequence[StatusRow]:
        return self._host.status()

    def runtime_revision(self) -> int:
        return self._host.runtime_revision

    def desired_state(self) -> DesiredState:
        document = self._host.deployments_document()
        return DesiredState(document["authority"], document["deployments"])

    def catalog(self) -> Catalog:
        return self._host.catalog

    async def load(self, deployment: str) -> JobId:
        return await self._host.load(deployment)

    async def stop(self, deployment: str, kind: StopKind = "stop") -> JobId:
        return await self._host.stop(deployment, kind)

    async def reset(self, deployment: str) -> ResetDone:
        outcome = await self._host.reset(deployment)
        return ResetDone(outcome.state, outcome.job_id)

    async def inventory(self) -> Inventory:
        foundation = self._reloader.foundation
        artifacts = await asyncio.to_thread(foundation.store.inventory)
        return Inventory(str(foundation.cache_root), artifacts)
