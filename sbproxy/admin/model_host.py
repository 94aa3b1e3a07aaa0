"""``/admin/model-host/*`` without jobs: what is known, desired, running and cached, and the lifecycle actions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from pydantic import ValidationError

from sbproxy.admin import views
from sbproxy.admin.ports import AdminDeps
from sbproxy.admin.replies import read_object, refuse, reply
from sbproxy.admin.statuses import reason_of, status_of
from sbproxy.api.model_host import LifecycleAccepted, LifecycleRequest, ResetAnswer
from sbproxy.errors import SbproxyError
from sbproxy.errors.admin import AuthorityReadOnly, InvalidBody

LOG = logging.getLogger("sbproxy.admin")
PREFIX = "/admin/model-host"
MAX_DEPLOYMENT = 128
_MISSING = "missing 'deployment' (or legacy 'model')"

Action = Callable[[str], Awaitable[web.Response]]


class ModelHostRoutes:
    def __init__(self, deps: AdminDeps) -> None:
        self._host = deps.host

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(f"{PREFIX}/catalog", self.catalog),
            web.get(f"{PREFIX}/deployments", self.deployments),
            web.put(f"{PREFIX}/deployments", self.replace_deployments),
            web.get(f"{PREFIX}/status", self.status),
            web.get(f"{PREFIX}/files", self.files),
            web.post(f"{PREFIX}/load", self.load),
            # Stop and drain are one operation, evict is its older name (document 2); the job says which was asked for.
            web.post(f"{PREFIX}/stop", self.stop),
            web.post(f"{PREFIX}/drain", self.drain),
            web.post(f"{PREFIX}/evict", self.drain),
            web.post(f"{PREFIX}/reset", self.reset),
        ]

    async def catalog(self, _request: web.Request) -> web.Response:
        return reply(views.catalog(self._host.catalog()))

    async def deployments(self, _request: web.Request) -> web.Response:
        return reply(views.desired_state(self._host.desired_state()))

    async def replace_deployments(self, _request: web.Request) -> web.Response:
        raise AuthorityReadOnly(self._host.desired_state().authority)

    async def status(self, _request: web.Request) -> web.Response:
        return reply(views.host_status(self._host.status(), self._host.runtime_revision()))

    async def files(self, _request: web.Request) -> web.Response:
        return reply(views.files(await self._host.inventory(), self._host.status()))

    async def load(self, request: web.Request) -> web.Response:
        async def act(deployment: str) -> web.Response:
            return _accepted(deployment, await self._host.load(deployment))

        return await _lifecycle(request, "load", act)

    async def stop(self, request: web.Request) -> web.Response:
        async def act(deployment: str) -> web.Response:
            return _accepted(deployment, await self._host.stop(deployment))

        return await _lifecycle(request, "stop", act)

    async def drain(self, request: web.Request) -> web.Response:
        async def act(deployment: str) -> web.Response:
            return _accepted(deployment, await self._host.stop(deployment, "drain"))

        return await _lifecycle(request, "stop", act)

    async def reset(self, request: web.Request) -> web.Response:
        async def act(deployment: str) -> web.Response:
            done = await self._host.reset(deployment)
            return reply(ResetAnswer(deployment=deployment, state=done.state, job_id=done.job_id))

        return await _lifecycle(request, "reset", act)


async def _lifecycle(request: web.Request, operation: str, act: Action) -> web.Response:
    deployment = await _deployment(request)
    try:
        return await act(deployment)
    except SbproxyError as error:
        status = status_of(error)
        if status < 500:
            raise
        # Texts of engines and stores hold paths and other programs' output; those stay in the log.
        LOG.error("%s of %s failed: %s", operation, deployment, error)
        return refuse(status, f"{operation} failed; inspect server logs", code=reason_of(error))


async def _deployment(request: web.Request) -> str:
    body = await read_object(request, "{deployment}")
    if not (body.get("deployment") or body.get("model")):
        raise InvalidBody(_MISSING)
    try:
        deployment = LifecycleRequest.model_validate(body).deployment
    except ValidationError as refused:
        problems = refused.errors(include_url=False, include_context=False, include_input=False)
        field = ".".join(str(part)[:64] for part in problems[0]["loc"])
        raise InvalidBody(f"{field or 'the body'}: {problems[0]['msg']}; expected {{deployment}}") from None
    if not deployment:
        raise InvalidBody(_MISSING)
    if len(deployment) > MAX_DEPLOYMENT:
        raise InvalidBody(f"deployment: an id has at most {MAX_DEPLOYMENT} characters")
    return deployment


def _accepted(deployment: str, job_id: str) -> web.Response:
    answer = LifecycleAccepted(deployment=deployment, job_id=job_id, poll_url=f"{PREFIX}/jobs/{job_id}")
    return reply(answer, 202)
