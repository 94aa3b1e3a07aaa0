"""The probe routes and other public documents: no credentials, no rate limit on the probes (document 2)."""

from __future__ import annotations

from aiohttp import web

from sbproxy import __version__
from sbproxy.admin import views
from sbproxy.admin.ports import AdminDeps
from sbproxy.admin.replies import reply, reply_json
from sbproxy.api.control import HealthAnswer, ReadyAnswer


class ProbeRoutes:
    def __init__(self, deps: AdminDeps) -> None:
        self._deps = deps

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", self.healthz),
            web.get("/health", self.health),
            web.get("/readyz", self.readyz),
            web.get("/ready", self.readyz),
            web.get("/livez", self.livez),
            web.get("/live", self.livez),
            web.get("/.well-known/sbproxy/quote-keys.json", self.quote_keys),
        ]

    async def healthz(self, _request: web.Request) -> web.Response:
        return reply_json({"status": "ok"})

    async def livez(self, _request: web.Request) -> web.Response:
        return reply_json({"alive": True})

    async def health(self, _request: web.Request) -> web.Response:
        """200 ``ok``, or 503 ``unready`` when a component is unhealthy."""
        deps, now = self._deps, self._deps.now()
        checks = views.health_checks(deps.health())
        ready = all(check.status != "unhealthy" for check in checks)
        answer = HealthAnswer(
            status="ok" if ready else "unready",
            version=__version__,
            build_hash=deps.build_hash,
            timestamp=views.rfc3339(now),
            uptime_seconds=max(0, int(now - deps.started_at)),
            checks=checks,
        )
        return reply(answer, 200 if ready else 503, omit_absent=True)

    async def readyz(self, _request: web.Request) -> web.Response:
        components = views.health_checks(self._deps.health())
        ready = all(component.status != "unhealthy" for component in components)
        answer = ReadyAnswer(status="ok" if ready else "unready", components=components)
        return reply(answer, 200 if ready else 503, omit_absent=True)

    async def quote_keys(self, _request: web.Request) -> web.Response:
        """No origin action of this version signs quotes, so there are no keys to publish."""
        return reply_json({"keys": []})
