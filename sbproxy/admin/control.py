"""Reload, drift, the health summary and the metrics mirror (document 2)."""

from __future__ import annotations

from aiohttp import web

from sbproxy.admin import views
from sbproxy.admin.ports import AdminDeps
from sbproxy.admin.replies import refuse, reply, reply_json, without_folder
from sbproxy.admin.statuses import reason_of, reload_status_of
from sbproxy.errors import SbproxyError
from sbproxy.observe.metrics import CONTENT_TYPE


class ControlRoutes:
    def __init__(self, deps: AdminDeps) -> None:
        self._reloader = deps.reloader
        self._metrics_text = deps.metrics_text
        self._now = deps.now

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/admin/reload", self.reload),
            web.get("/admin/drift", self.drift),
            web.get("/api/health", self.health),
            web.get("/metrics", self.metrics),
        ]

    async def reload(self, _request: web.Request) -> web.Response:
        try:
            outcome = await self._reloader.reload()
        except SbproxyError as error:
            return self._refused(error)
        return reply(views.reload_outcome(outcome))

    async def drift(self, _request: web.Request) -> web.Response:
        try:
            report = await self._reloader.drift()
        except SbproxyError as error:
            return self._refused(error)
        return reply(views.drift(report, self._now()))

    async def health(self, _request: web.Request) -> web.Response:
        return reply_json({"status": "ok", "origins": []})

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics_text(), headers={"Content-Type": CONTENT_TYPE})

    def _refused(self, error: SbproxyError) -> web.Response:
        text = without_folder(str(error), self._reloader.config_path)
        return refuse(reload_status_of(error), text, code=reason_of(error))
