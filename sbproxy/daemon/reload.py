"""The one reload transaction of the process, for the admin route, SIGHUP and the file watcher.

Everything that can refuse runs before the model host commits; routes are published in the same step of the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from sbproxy.admin.ports import ConfigText, DriftReport, NewConfig, ReloadOutcome
from sbproxy.config.core.changes import restart_required
from sbproxy.config.core.secret_forms import REDACTED
from sbproxy.config.load import Loaded
from sbproxy.config.redacted_text import mask_lines
from sbproxy.daemon.checks import Checked, load_checked
from sbproxy.daemon.config_file import StagedFile, shown_text
from sbproxy.daemon.desired_state import ADMIN_MANAGED, wanted
from sbproxy.daemon.foundation import Foundation
from sbproxy.daemon.runtime import Runtime
from sbproxy.errors import SbproxyError
from sbproxy.errors.admin import ConfigMoved, ReloadInFlight, ReloadUnavailable
from sbproxy.errors.config import ConfigInvalid, ConfigUnreadable, Problem, RestartRequired
from sbproxy.observe.metrics import Metrics

_log = logging.getLogger(__name__)


class ConfigReloader:
    """Reads the file of what is applied again."""

    def __init__(self, runtime: Runtime, *, environ: Mapping[str, str], metrics: Metrics) -> None:
        self.config_path: str | None = str(runtime.loaded.path)
        self._runtime = runtime
        self._environ = environ
        self._metrics = metrics
        self._started_by = ""
        self._running: asyncio.Task[ReloadOutcome] | None = None

    async def boot(self) -> None:
        """The first commit: the same steps on what was loaded at start. Raises what refuses it."""
        async with self._runtime.changing:
            degraded = await self._apply(self._runtime.loaded, self._runtime.foundation, starting=True)
        if degraded:
            _log.error("started_degraded: %s did not start and can be reset or replaced", ", ".join(degraded))

    async def reload(self, started_by: str = "the admin API") -> ReloadOutcome:
        """Read the file again and apply it whole, or raise and change nothing.

        A caller that leaves does not stop a transaction that has begun; ``close`` does.
        """
        return await self._alone(started_by, None)

    async def replace_config(self, new: NewConfig) -> ReloadOutcome:
        """The same with a text that then stands in the file. Raises ConfigMoved, ConfigNotWritten, and what refuses a
        reload; the file is as it was unless ConfigNotWritten says otherwise."""
        return await self._alone("a new configuration", new)

    async def config_text(self) -> ConfigText:
        """What stands in the file, secrets masked, and the revision that is loaded. Raises ConfigUnreadable."""
        loaded = self._runtime.loaded
        return ConfigText(await asyncio.to_thread(shown_text, loaded.path), loaded.revision)

    async def _alone(self, started_by: str, new: NewConfig | None) -> ReloadOutcome:
        if self._running is not None:
            raise ReloadInFlight(self._started_by)
        self._started_by = started_by
        running = self._running = asyncio.create_task(self._reload(started_by, new), name="reload")
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

    async def _reload(self, started_by: str, new: NewConfig | None) -> ReloadOutcome:
        try:
            async with self._runtime.changing:
                loaded, degraded = await (self._from_file() if new is None else self._from_text(new))
        except SbproxyError as error:
            self._metrics.config_reloaded("failure")
            _log.error("config_reload_failed started_by=%r: %s", started_by, error)
            raise
        self._metrics.config_reloaded("success")
        _log.info("config_reloaded started_by=%r revision=%s", started_by, loaded.revision)
        return ReloadOutcome(loaded.revision, time.time(), degraded)

    async def _from_file(self) -> tuple[Loaded, tuple[str, ...]]:
        loaded, foundation = await asyncio.to_thread(self._candidate)
        return loaded, await self._apply(loaded, foundation, starting=False)

    async def _from_text(self, new: NewConfig) -> tuple[Loaded, tuple[str, ...]]:
        running = self._runtime.loaded
        if new.if_match not in (None, running.revision):
            raise ConfigMoved(new.if_match, running.revision)
        loaded, foundation = await asyncio.to_thread(self._candidate, new.text)
        # Durable beside the file before anything is applied, so that a full disk refuses and only a rename is left.
        with await asyncio.to_thread(StagedFile, loaded.path, new.text.encode()) as staged:
            degraded = await self._apply(loaded, foundation, starting=False)
            staged.publish()
        return loaded, degraded

    async def drift(self) -> DriftReport:
        """The file on disk beside what was loaded from it; raises ConfigUnreadable."""
        return await asyncio.to_thread(self._compare)

    def _candidate(self, text: str | None = None) -> tuple[Loaded, Foundation]:
        running = self._runtime.loaded
        path, environ = running.path, self._environ
        checked = load_checked(path, environ) if text is None else _check_text(path, text, environ)
        fields = restart_required(running.config, checked.loaded.config)
        if fields:
            raise RestartRequired(fields)
        return checked.loaded, Foundation.of(checked, self._environ)

    async def _apply(self, loaded: Loaded, foundation: Foundation, *, starting: bool) -> tuple[str, ...]:
        desired = await asyncio.to_thread(wanted, loaded, foundation, starting=starting)
        candidate = await self._runtime.prepare(loaded, foundation, desired.deployments)
        try:
            if desired.adopt is not None:
                await asyncio.to_thread(desired.adopt)
        except BaseException:
            await candidate.abort()
            raise
        # A stored map can only be mended through a daemon that runs, so one bad model must not keep it from starting.
        stored = loaded.config.proxy.model_host.authority == ADMIN_MANAGED
        return (await candidate.commit(keep_failed=starting and stored)).degraded

    def _compare(self) -> DriftReport:
        loaded = self._runtime.loaded
        try:
            data = loaded.path.read_bytes()
        except OSError as error:
            raise ConfigUnreadable(str(loaded.path), error.strerror or str(error)) from error
        return DriftReport(
            config_path=str(loaded.path),
            loaded_revision=loaded.revision,
            loaded_content_hash=loaded.content_hash,
            on_disk_content_hash=hashlib.sha256(data).hexdigest()[:12],
            on_disk_size_bytes=len(data),
        )


def _check_text(path: Path, text: str, environ: Mapping[str, str]) -> Checked:
    """A text that was sent: also refused where it is what the editor shows instead of what the file holds."""
    reason = f"holds {REDACTED}, which stands for a secret; write a reference such as ${{VAR}}"
    masked = {line: Problem(str(path), "", reason, line) for line in mask_lines(text)}
    try:
        checked = load_checked(path, environ, text=text)
    except ConfigInvalid as error:
        told = {problem.line for problem in error.problems}
        more = [problem for line, problem in masked.items() if line not in told]
        problems = sorted((*error.problems, *more), key=lambda each: (each.file != str(path), each.line or 0))
        raise ConfigInvalid(error.file, tuple(problems)) from None
    if masked:
        raise ConfigInvalid(str(path), tuple(masked.values()))
    return checked
