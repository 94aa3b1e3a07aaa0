"""The daemon as one object: builds the rooms in order, serves, and takes them down in the reverse order.

What each room does is its own affair; this module knows only who needs whom, and when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from sbproxy import __version__
from sbproxy.admin.app import build_app
from sbproxy.admin.listener import AdminListener
from sbproxy.admin.ports import AdminDeps, ComponentHealth
from sbproxy.built import REVISION
from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.key_rules import uses_keys
from sbproxy.config.core.secret_values import secret_values
from sbproxy.config.load import Loaded
from sbproxy.daemon.artifact_control import ArtifactControl
from sbproxy.daemon.checks import load_checked
from sbproxy.daemon.desired_state import DesiredState
from sbproxy.daemon.foundation import Foundation
from sbproxy.daemon.governed import GovernedKeys
from sbproxy.daemon.health import gateway_health, model_host_health
from sbproxy.daemon.host_control import HostControl
from sbproxy.daemon.listening import reserve
from sbproxy.daemon.managed_models import ListedModels
from sbproxy.daemon.open_files import raise_limit
from sbproxy.daemon.options import ServeOptions
from sbproxy.daemon.reload import ConfigReloader
from sbproxy.daemon.runtime import Runtime, routes_of
from sbproxy.daemon.watcher import watch
from sbproxy.devices.core.model import Device
from sbproxy.gateway.core.routes import RouteTable
from sbproxy.gateway.http.pool import UpstreamPool
from sbproxy.gateway.http.server import HttpServer
from sbproxy.gateway.pipeline import Gateway
from sbproxy.modelhost.host import ModelHost
from sbproxy.modelhost.job_store import SqliteJobStore
from sbproxy.observe.core.redact import Redactor
from sbproxy.observe.core.value import compile_prices
from sbproxy.observe.log_output import choose_format, choose_level, configure_logging
from sbproxy.observe.metrics import Metrics
from sbproxy.observe.request_log import RequestLog
from sbproxy.observe.sink import RequestObserver
from sbproxy.observe.value_ledger import ValueLedger
from sbproxy.observe.value_store import FILE as VALUE_FILE
from sbproxy.observe.value_store import SqliteValueStore

_log = logging.getLogger(__name__)

_MEASURE_EVERY_S = 5.0


class Daemon:
    """``start``, ``wait_stopped``; ``request_stop`` from a signal handler: once to drain, twice to stop at once."""

    def __init__(self, path: Path, options: ServeOptions) -> None:
        self._path = path.absolute()
        self._options = options
        self._redactor = Redactor()
        self._phase = "starting"
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._rooms = AsyncExitStack()
        self._devices: tuple[Device, ...] = ()
        self._reloads: set[asyncio.Task[None]] = set()
        self._keys: GovernedKeys | None = None
        self.host: ModelHost
        self.runtime: Runtime
        self.reloader: ConfigReloader

    async def start(self) -> None:
        """Return when requests are served. Raises whatever refuses the start; nothing stays open then.

        A stop that is asked for meanwhile ends the start; ``wait_stopped`` then returns at once.
        """
        starting = asyncio.create_task(self._start(), name="start")
        asked = asyncio.create_task(self._stop_asked.wait(), name="stop-asked")
        try:
            await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            if not starting.done():
                starting.cancel()
            await asyncio.wait((starting,))
        try:
            if not starting.cancelled():
                starting.result()
        except BaseException:
            await self._rooms.aclose()
            raise

    async def wait_stopped(self) -> None:
        """Serve until a stop is asked for, then drain and take everything down."""
        await self._stop_asked.wait()
        self._phase = "stopping"
        _log.info("shutdown_started grace_ms=%d", self._options.grace_ms)
        await self._rooms.aclose()
        _log.info("shutdown_complete")

    def request_stop(self) -> None:
        """The first call drains within the grace time, the second cuts what still runs."""
        _log.info("shutdown_signal_received")
        if self._stop_asked.is_set():
            self._hurry.set()
        self._stop_asked.set()

    def request_reload(self) -> None:
        """SIGHUP: read the file again whatever its bytes; before the first load is done there is nothing to reload."""
        if self._phase == "serving":
            task = asyncio.get_running_loop().create_task(self.reloader.reload_on_signal(), name="reload")
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)

    # --- building -----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        options, rooms = self._options, self._rooms
        level = choose_level(options.log_level, options.environ)
        configure_logging(level, choose_format(options.log_format), self._redactor)
        raise_limit()
        checked = await asyncio.to_thread(load_checked, self._path, options.environ)
        loaded = checked.loaded
        self._accept_secrets(loaded)
        proxy = loaded.config.proxy
        for warning in loaded.warnings:
            _log.warning("config: %s", warning)
        foundation = await asyncio.to_thread(Foundation.of, checked, options.environ)

        socket = reserve(proxy.bind_address, proxy.http_bind_port)
        rooms.callback(socket.close)
        for orphan in await asyncio.to_thread(foundation.ownership.reap_orphans):
            _log.warning("orphan_ended deployment=%s pid=%d", orphan.deployment, orphan.pid)
        store = await asyncio.to_thread(SqliteJobStore, foundation.jobs_path)
        rooms.callback(store.close)

        metrics = Metrics()
        self.host = ModelHost(
            catalog=foundation.catalog,
            config=proxy.model_host,
            store=foundation.store,
            drivers=foundation.drivers,
            devices=foundation.devices,
            jobs=store,
            metrics=metrics,
        )
        if uses_keys(loaded.config):
            self._keys = await GovernedKeys.open(loaded.config, foundation.cache_root / "keys", options.environ, rooms)
        gateway, server, requests = self._build_data_plane(loaded, foundation, metrics)
        runtime = self.runtime = Runtime(loaded, foundation, host=self.host, publish=self._publisher(gateway))
        self.reloader = ConfigReloader(runtime, environ=options.environ, metrics=metrics)
        desired = DesiredState(runtime)
        self._artifacts = ArtifactControl(runtime)
        if proxy.admin.enabled:
            await self._open_admin(loaded.config, desired, metrics, requests)
        # After the admin API in this order, so that it still answers while engines drain.
        rooms.push_async_callback(self._artifacts.close)
        rooms.push_async_callback(self._close_host)
        rooms.push_async_callback(self.reloader.close)
        rooms.push_async_callback(desired.close)
        await self.reloader.boot()
        await server.start(proxy.bind_address, proxy.http_bind_port, sock=socket)
        rooms.push_async_callback(self._drain, server)
        self._begin_background()
        self._phase = "serving"
        _log.info("starting sbproxy on %s:%d version=%s", proxy.bind_address, proxy.http_bind_port, __version__)

    def _build_data_plane(
        self, loaded: Loaded, foundation: Foundation, metrics: Metrics
    ) -> tuple[Gateway, HttpServer, RequestLog]:
        requests = RequestLog(loaded.config.proxy.admin.max_log_entries)
        self._value = ValueLedger(SqliteValueStore(foundation.cache_root / VALUE_FILE))
        self._rooms.push_async_callback(self._value.flush)
        pool = UpstreamPool()
        self._rooms.push_async_callback(pool.close)
        gateway = Gateway(
            routes_of(loaded, foundation),
            ListedModels(self.host),
            pool,
            RequestObserver(requests, metrics, self._value),
            metrics_text=metrics.text,
            keys=self._keys.gate if self._keys is not None else None,
        )
        server = HttpServer(gateway, body_limit=gateway.body_limit)
        metrics.watch(
            host_rows=self.host.status,
            devices=lambda: self._devices,
            active_connections=lambda: len(server.connections),
        )
        return gateway, server, requests

    async def _open_admin(
        self, config: SbConfig, desired: DesiredState, metrics: Metrics, requests: RequestLog
    ) -> None:
        deps = AdminDeps(
            config=config.proxy.admin,
            host=HostControl(self.runtime, desired),
            artifacts=self._artifacts,
            jobs=self.host.jobs,
            requests=requests,
            reloader=self.reloader,
            health=self._health,
            metrics_text=metrics.text,
            value=self._value.report,
            devices=lambda: self._devices,
            build_hash=REVISION,
            keys=self._keys.administration if self._keys is not None else None,
        )
        await self._rooms.enter_async_context(AdminListener(build_app(deps), config.proxy.admin))
        _log.info("admin API on %s:%d", config.proxy.admin.bind, config.proxy.admin.port)

    def _begin_background(self) -> None:
        """The watcher and the measuring; both end when the daemon stops serving."""
        tasks = [
            asyncio.create_task(self._measure(), name="measure"),
            asyncio.create_task(self._value.run(), name="value-ledger"),
        ]
        if self._options.watch:
            watching = watch(self._path, self.reloader.reload_if_changed, self._stop_asked)
            tasks.append(asyncio.create_task(watching, name="config-watcher"))

        async def end() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._rooms.push_async_callback(end)

    async def _measure(self) -> None:
        while True:
            await self.host.refresh()
            self._devices = (await asyncio.to_thread(self.runtime.foundation.devices.probe)).devices
            await asyncio.sleep(_MEASURE_EVERY_S)

    def _publisher(self, gateway: Gateway) -> Callable[[RouteTable, Loaded], None]:
        def publish(routes: RouteTable, loaded: Loaded) -> None:
            self._accept_secrets(loaded)
            gateway.publish(routes)
            prices = compile_prices(loaded.config.origins, self.host.config.deployments)
            self._value.publish(prices)
            if self._keys is not None:
                self._keys.publish(loaded.config, prices)

        return publish

    def _accept_secrets(self, loaded: Loaded) -> None:
        """From here on no log line shows them."""
        self._redactor.register(secret_values(loaded.config))

    def _health(self) -> list[ComponentHealth]:
        starting = self.host.runtime_revision == 0 and bool(self.host.config.deployments)
        keys = [] if self._keys is None else [self._keys.health()]
        return [gateway_health(self._phase), model_host_health(self.host.status(), starting=starting), *keys]

    # --- taking down --------------------------------------------------------------------------------------------------

    async def _drain(self, server: HttpServer) -> None:
        finished = await self._unless_hurried(server.drain(self._options.grace_ms / 1000))
        if not finished:
            await server.close()

    async def _close_host(self) -> None:
        _log.info("shutdown_runtimes")
        finished = await self._unless_hurried(self.host.close())
        if not finished:
            await self.host.close(0)

    async def _unless_hurried(self, work: Coroutine[Any, Any, object]) -> bool:
        """Whether ``work`` was let finish; a second stop signal cancels it."""
        working = asyncio.create_task(work)
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((working, hurried), return_when=asyncio.FIRST_COMPLETED)
        for task in (working, hurried):
            task.cancel()
        await asyncio.wait((working, hurried))
        if working.cancelled():
            return False
        working.result()
        return True
