"""The commit of a prepared candidate: start what is new, publish in one step, drain what lost its place, or undo."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sbproxy.errors.modelhost import HandoffTimedOut
from sbproxy.errors.tree import SbproxyError
from sbproxy.modelhost.candidate import Candidate, drains_first, starts_now
from sbproxy.modelhost.deployment import Deployment
from sbproxy.modelhost.roster import Roster

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What a commit published. ``degraded`` names deployments that were kept although their start failed."""

    runtime_revision: int
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    preserved: tuple[str, ...]
    degraded: tuple[str, ...]


class Prepared:
    """A candidate that waits for its commit. Exactly one of ``commit`` and ``abort`` ends it and frees the host for
    the next candidate."""

    def __init__(self, roster: Roster, candidate: Candidate, done: Callable[[], None]) -> None:
        self._roster = roster
        self._candidate = candidate
        self._done = done
        self._staged = candidate.staged
        self._restoring = False
        self._held_down: list[Deployment] = []
        self._to_restore: list[Deployment] = []
        self._degraded: list[str] = []
        self._ended = False

    @property
    def candidate(self) -> Candidate:
        return self._candidate

    async def commit(self, *, keep_failed: bool = False) -> CommitReport:
        """Start warm and replacing engines, then swap. Raises what kept one from starting; the old state then serves.

        With ``keep_failed`` an *added* deployment that does not start is published failed instead, so that one bad
        model does not keep a whole daemon from booting.
        """
        self._end()
        self._roster.committing = True
        try:
            await self._start_all(keep_failed)
        except BaseException as error:
            undoing = asyncio.ensure_future(self._roll_back(wait=isinstance(error, SbproxyError)))
            await _in_spite_of_cancellation(undoing)
            raise
        else:
            return self._publish()
        finally:
            if not self._restoring:
                self._done()

    async def abort(self) -> None:
        """Give the candidate up. What was pulled stays in the cache."""
        if not self._ended:
            self._end()
            self._done()

    def _end(self) -> None:
        if self._ended:
            raise RuntimeError("this candidate was committed or aborted before")
        self._ended = True

    async def _start_all(self, keep_failed: bool) -> None:
        old = self._roster.deployments
        starting = [name for name, new in self._staged.items() if starts_now(new.config, old.get(name))]
        recreated = [name for name in starting if drains_first(self._staged[name].config, old.get(name))]
        # Rolling ones first: while they start nothing has been stopped, so a failure costs nobody anything.
        rolling = [name for name in starting if name not in recreated]
        tolerated = self._candidate.plan.added if keep_failed else ()
        await self._start(rolling, tolerated)
        await self._drain_first(recreated)
        await self._start(recreated, ())
        await asyncio.gather(*(self._revive(old[name]) for name in self._candidate.plan.preserved))

    async def _revive(self, kept: Deployment) -> None:
        """A warm deployment that is unchanged and has failed gets another try: whoever reloads may have mended what it
        needs. It refuses nothing, for the old state has failed too; what stays down is named in the report."""
        if not kept.config.warm or not kept.failed:
            return
        try:
            async with asyncio.timeout(self._candidate.services.config.handoff_timeout_ms / 1000):
                kept.reset()
                await kept.start("warm")
        except (SbproxyError, TimeoutError) as error:
            log.error("%s is still failed after this reload: %s", kept.id, error)
            self._degraded.append(kept.id)

    async def _start(self, names: Iterable[str], tolerated: Iterable[str]) -> None:
        slots = asyncio.Semaphore(self._candidate.services.config.max_parallel_prepares)

        async def one(name: str) -> None:
            async with slots:
                await self._start_one(name)

        names = list(names)
        results = await asyncio.gather(*(one(name) for name in names), return_exceptions=True)
        for name, error in zip(names, results, strict=True):
            if isinstance(error, SbproxyError) and name in tolerated:
                log.error("%s did not start and is kept failed: %s", name, error)
                self._degraded.append(name)
            elif error is not None:
                raise error

    async def _start_one(self, name: str) -> None:
        """A replacement has ``handoff_timeout_ms`` to be ready on all replicas while the old generation serves."""
        new, old = self._staged[name], self._roster.deployments.get(name)
        timeout_ms = self._candidate.services.config.handoff_timeout_ms
        hands_over = old is not None and old.serving
        try:
            async with asyncio.timeout(timeout_ms / 1000 if hands_over else None):
                await new.start("warm")
        except TimeoutError:
            raise HandoffTimedOut(name, timeout_ms) from None

    async def _drain_first(self, names: Iterable[str]) -> None:
        for name in names:
            old = self._roster.deployments[name]
            old.suspended = True
            self._held_down.append(old)
            # What somebody else is stopping already is not ours to bring back.
            if old.serving:
                self._to_restore.append(old)
        await asyncio.gather(*(old.stop("reload") for old in self._held_down))

    def _publish(self) -> CommitReport:
        candidate, roster = self._candidate, self._roster
        kept = {name: roster.deployments[name] for name in candidate.plan.preserved}
        losing = roster.publish(candidate.catalog, candidate.services, {**kept, **self._staged})
        for old in losing:
            candidate.services.background.spawn(roster.retire(old, "reload"), f"retire {old.id}")
        plan = candidate.plan
        return CommitReport(
            roster.revision, plan.added, plan.changed, plan.removed, plan.preserved, tuple(self._degraded)
        )

    async def _roll_back(self, *, wait: bool) -> None:
        """Stop what was staged, then restore what a recreate rollout had stopped. A restore can fail; that is logged
        and visible in the status, and the first error stays the one that is raised.

        Without ``wait``, when the commit was cancelled, the restore goes on in the background: whoever cancels wants
        to go on, and at shutdown there is nothing to restore.
        """
        for new in self._staged.values():
            new.suspended = True
        await asyncio.gather(*(new.stop("reload", 0) for new in self._staged.values()))
        if wait:
            await self._restore()
        elif self._held_down:
            self._restoring = True
            self._candidate.services.background.spawn(self._restore_and_end(), "restore")

    async def _restore_and_end(self) -> None:
        # No other candidate may begin before: it would replace a generation that is about to be started again.
        try:
            await self._restore()
        finally:
            self._done()

    async def _restore(self) -> None:
        # A drain that has begun cannot be taken back, so it is waited for.
        await asyncio.gather(*(old.stop("reload") for old in self._held_down))
        if self._roster.closed:
            return
        for old in self._held_down:
            old.suspended = False
        results = await asyncio.gather(*(old.start("restore") for old in self._to_restore), return_exceptions=True)
        for old, error in zip(self._to_restore, results, strict=True):
            if error is not None and not self._roster.closed:
                log.error("%s could not be restored to generation %d: %s", old.id, old.generation, error)


async def _in_spite_of_cancellation(work: asyncio.Future[None]) -> None:
    """Wait for the end of ``work`` however often the waiting is cancelled: half an undoing would leave engines."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(work)
    work.result()
