"""The published deployments of this host, the generations that are leaving, and the revision that counts both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from sbproxy.catalog.core.model import Catalog
from sbproxy.modelhost.core.desired import Desired
from sbproxy.modelhost.core.events import StopCause
from sbproxy.modelhost.deployment import Deployment
from sbproxy.modelhost.services import Services, house_of


@dataclass(slots=True)
class Roster:
    """Read by the host on every request, written only by a commit. ``revision`` is 0 before the first commit."""

    catalog: Catalog
    services: Services
    revision: int = 0
    deployments: dict[str, Deployment] = field(default_factory=dict)
    retiring: set[Deployment] = field(default_factory=set)
    staged: dict[str, Deployment] = field(default_factory=dict)
    """New generations of the candidate that is prepared or committed now."""
    committing: bool = False
    closed: bool = False
    """The host is being taken down: nothing is brought back any more."""
    _unstaged: asyncio.Event = field(default_factory=asyncio.Event)
    _generations: dict[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Deployment]:
        """Published ones by id, then those that a candidate brings, then those that drain."""
        yield from (self.deployments[name] for name in sorted(self.deployments))
        published = self.deployments
        yield from (new for name, new in sorted(self.staged.items()) if published.get(name) is not new)
        yield from sorted(self.retiring, key=lambda leaving: (leaving.id, leaving.generation))

    @property
    def desired(self) -> dict[str, Desired]:
        return {
            name: Desired(deployment.config, deployment.artifact.digest, deployment.artifact.engine)
            for name, deployment in self.deployments.items()
        }

    @property
    def resident(self) -> list[Deployment]:
        return [deployment for deployment in self if deployment.resident]

    def next_generation(self, name: str) -> int:
        """Grows for ever within a process, also over removals and failed candidates."""
        self._generations[name] = self._generations.get(name, 0) + 1
        return self._generations[name]

    def stage(self, staged: dict[str, Deployment]) -> None:
        """Show what a candidate brings."""
        self.staged = staged

    def unstage(self) -> None:
        """The candidate has ended, whichever way."""
        self.staged = {}
        self.committing = False
        self._unstaged.set()
        self._unstaged = asyncio.Event()

    def changes(self, name: str) -> bool:
        """Whether a commit is about to replace this deployment, or to bring it."""
        return name in self.staged and (self.committing or name not in self.deployments)

    async def settled(self, name: str) -> None:
        while self.changes(name):
            await self._unstaged.wait()

    def publish(self, catalog: Catalog, services: Services, deployments: dict[str, Deployment]) -> list[Deployment]:
        """Swap everything in one step; returns the generations that lost their place."""
        losing = [old for name, old in self.deployments.items() if deployments.get(name) is not old]
        for name, kept in deployments.items():
            if self.deployments.get(name) is kept:
                kept.adopt(services)
        self.catalog, self.services, self.deployments = catalog, services, deployments
        services.residency.govern(house_of(services.config))
        self.revision += 1
        self.retiring.update(losing)
        for old in losing:
            if old.id in deployments:
                old.supersede()
        return losing

    async def retire(self, losing: Deployment, cause: StopCause) -> None:
        """Drain one that lost its place, and forget it."""
        losing.suspended = True
        try:
            await losing.stop(cause)
        finally:
            self.retiring.discard(losing)
