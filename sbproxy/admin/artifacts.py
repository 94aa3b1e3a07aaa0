"""Pull, remove and collect (document 2, "Model host admin"), and the fleet's cache and memory as of this node alone."""

from __future__ import annotations

import logging

from aiohttp import web
from pydantic import ValidationError

from sbproxy.admin import artifact_views
from sbproxy.admin.model_host import PREFIX
from sbproxy.admin.ports import AdminDeps
from sbproxy.admin.replies import read_body, read_object, refuse, reply
from sbproxy.admin.statuses import pull_status_of, reason_of, status_of
from sbproxy.api.artifacts import PullAccepted, PullRequest, RemovalAnswer
from sbproxy.artifacts.core.source import is_sha256
from sbproxy.errors import SbproxyError
from sbproxy.errors.admin import InvalidBody
from sbproxy.errors.artifacts import ArtifactAbsent, RemovalBlocked

LOG = logging.getLogger("sbproxy.admin")
_PULL_SHAPE = "{model, variant?, engine?}"
_MAX_NAME = 128


class ArtifactRoutes:
    def __init__(self, deps: AdminDeps) -> None:
        self._host = deps.host
        self._artifacts = deps.artifacts
        self._devices = deps.devices
        self._now = deps.now

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(f"{PREFIX}/pull", self.pull),
            web.post(f"{PREFIX}/gc", self.collect),
            web.delete(f"{PREFIX}/artifacts/{{digest}}", self.remove),
            web.get("/admin/cluster/artifacts", self.cluster_artifacts),
            web.get("/admin/cluster/vram", self.cluster_vram),
        ]

    async def pull(self, request: web.Request) -> web.Response:
        """202: the job fetches, verifies and publishes. Our own route; the documents name none."""
        wanted = _pull_request(await read_object(request, _PULL_SHAPE))
        try:
            begun = await self._artifacts.pull(wanted.model, wanted.variant, wanted.engine)
        except SbproxyError as error:
            return _refused("pull", pull_status_of(error), error)
        answer = PullAccepted(
            model=begun.model,
            variant=begun.variant,
            engine=begun.engine,
            artifact_digest=begun.artifact_digest,
            job_id=begun.job_id,
            poll_url=f"{PREFIX}/jobs/{begun.job_id}",
        )
        return reply(answer, 202)

    async def remove(self, request: web.Request) -> web.Response:
        digest = request.match_info["digest"]
        if not is_sha256(digest):
            return refuse(400, "an artifact digest is 64 lower-case hex characters", code="invalid_digest")
        try:
            done = await self._artifacts.remove(digest)
        except ArtifactAbsent as error:
            return refuse(404, str(error), code=error.code, extra={"artifact_digest": digest})
        except RemovalBlocked as error:
            return refuse(409, str(error), code=error.code, extra={"reason": error.reason})
        except SbproxyError as error:
            return _refused("removal", status_of(error), error)
        answer = RemovalAnswer(
            artifact_digest=done.artifact_digest,
            removed=done.removed,
            reclaimed_bytes=done.reclaimed_bytes,
            job_id=done.job_id,
        )
        return reply(answer)

    async def collect(self, request: web.Request) -> web.Response:
        if (await read_body(request)).strip() not in (b"", b"{}"):
            raise InvalidBody("a collection takes no settings: it goes down to the configured budget")
        try:
            return reply(artifact_views.gc_report(await self._artifacts.collect()))
        except SbproxyError as error:
            return _refused("collection", status_of(error), error)

    async def cluster_artifacts(self, _request: web.Request) -> web.Response:
        return reply(artifact_views.cluster_artifacts(await self._host.inventory()))

    async def cluster_vram(self, _request: web.Request) -> web.Response:
        return reply(artifact_views.cluster_vram(self._devices(), self._now()), omit_absent=True)


def _refused(operation: str, status: int, error: SbproxyError) -> web.Response:
    text = str(error)
    if status >= 500:
        # Texts of the store hold paths of the server; those stay in the log.
        LOG.error("%s failed: %s", operation, error)
        text = f"{operation} failed; inspect server logs"
    return refuse(status, text, code=reason_of(error))


def _pull_request(body: dict[str, object]) -> PullRequest:
    try:
        wanted = PullRequest.model_validate(body)
    except ValidationError as refused:
        problem = refused.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(str(part)[:64] for part in problem["loc"])
        raise InvalidBody(f"{field or 'the body'}: {problem['msg']}; expected {_PULL_SHAPE}") from None
    for name, value in (("model", wanted.model), ("variant", wanted.variant)):
        if value is not None and not 0 < len(value) <= _MAX_NAME:
            raise InvalidBody(f"{name}: an id has 1 to {_MAX_NAME} characters")
    return wanted
