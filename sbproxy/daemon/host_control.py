"""The model host as the admin API sees it: its operations, and the inventory of the store with what is resident."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sbproxy.admin.ports import DesiredMap, Inventory, Replaced, ResetDone
from sbproxy.catalog.core.model import Catalog
from sbproxy.daemon.desired_state import DesiredState
from sbproxy.daemon.runtime import Runtime
from sbproxy.modelhost.core.desired_document import Replacement
from sbproxy.modelhost.core.jobs import JobId, StopKind
from sbproxy.modelhost.core.status import StatusRow
from sbproxy.modelhost.host import ModelHost


class HostControl:
    """Implements ``sbproxy.admin.ports.ModelHostControl``."""

    def __init__(self, runtime: Runtime, desired: DesiredState) -> None:
        self._host: ModelHost = runtime.host
        self._runtime = runtime
        self._desired = desired

    def status(self) -> Sequence[StatusRow]:
        return self._host.status()

    def runtime_revision(self) -> int:
        return self._host.runtime_revision

    def authority(self) -> str:
        return self._desired.authority

    async def desired_map(self) -> DesiredMap:
        return await self._desired.read()

    async def replace_deployments(self, replacement: Replacement) -> Replaced:
        return await self._desired.replace(replacement)

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
        foundation = self._runtime.foundation
        artifacts = await asyncio.to_thread(foundation.store.inventory)
        return Inventory(str(foundation.cache_root), artifacts)
