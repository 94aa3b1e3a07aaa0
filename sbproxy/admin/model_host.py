"""``/admin/model-host/*`` without jobs: what is known, desired, running and cached, and the lifecycle actions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from pydantic import ValidationError

from sbproxy.admin import views
from sbproxy.admin.audit import audit
from sbproxy.admin.gate import PRINCIPAL
from sbproxy.admin.ports import AdminDeps
from sbproxy.admin.replies import read_body, read_object, refuse, reply, reply_json
from sbproxy.admin.statuses import reason_of, replace_outcome_of, status_of
from sbproxy.api.model_host import LifecycleAccepted, LifecycleRequest, ResetAnswer
from sbproxy.errors import SbproxyError
from sbproxy.errors.admin import AuthorityReadOnly, InvalidBody
from sbproxy.errors.modelhost import DesiredStoreFailed, RuntimeCommitFailed
from sbproxy.modelhost.core.desired_document import SOURCE_MODE, Replacement, parse_replacement

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
        try:
            return reply(views.desired_map(await self._host.desired_map()))
        except DesiredStoreFailed as error:
            return _replace_refused(error)

    async def replace_deployments(self, request: web.Request) -> web.Response:
        authority = self._host.authority()
        if authority != "admin_managed":
            raise AuthorityReadOnly(authority)
        replacement = parse_replacement(await read_body(request))
        try:
            done = await self._host.replace_deployments(replacement)
        except SbproxyError as error:
            if isinstance(error, RuntimeCommitFailed):
                _audit_replaced(request, replacement, error.revision, error.content_digest, error.code)
            return _replace_refused(error)
        _audit_replaced(request, replacement, done.revision, done.content_digest, "replaced")
        return reply(views.replaced(done))

    async def status(self, _request: web.Request) -> web.Response:
        status = views.host_status(self._host.status(), self._host.runtime_revision())
        # The rows stand in it twice; written out once, a thousand of them cost half as much.
        shown = status.model_dump(mode="json", exclude={"models"})
        return reply_json({**shown, "models": shown["deployments"]})

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


def _replace_refused(error: SbproxyError) -> web.Response:
    status, code = replace_outcome_of(error)
    text = str(error)
    if status >= 500 and not isinstance(error, RuntimeCommitFailed):
        # Paths, other programs' output and transport diagnostics stay in the log.
        LOG.error("deployments: %s", error)
        text = f"the deployments are as they were ({code}); inspect server logs"
    return refuse(status, text, code=code, extra=views.refusal_fields(error))


def _audit_replaced(request: web.Request, asked: Replacement, revision: int, digest: str, outcome: str) -> None:
    principal = request[PRINCIPAL]
    audit(
        request,
        principal.username,
        principal.role,
        outcome,
        action="model_deployments_replace",
        source_mode=SOURCE_MODE,
        prior_revision=asked.expected_revision,
        next_revision=revision,
        content_digest=digest,
        deployment_count=len(asked.deployments),
    )


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
