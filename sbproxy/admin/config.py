"""``/admin/config``: the configuration file as text, and its replacement (document 2, "GET, PUT /admin/config").

This node owns its file, so the answers about layers of other owners never arise here.
"""

from __future__ import annotations

import logging
from typing import Any

from aiohttp import web

from sbproxy.admin import views
from sbproxy.admin.audit import audit
from sbproxy.admin.gate import PRINCIPAL
from sbproxy.admin.ports import AdminDeps, NewConfig
from sbproxy.admin.replies import read_body, refuse, reply, without_folder
from sbproxy.admin.statuses import config_write_status_of, reason_of, reload_status_of
from sbproxy.api.config import ConfigAnswer, ConfigProblem
from sbproxy.config.yaml_text import decode
from sbproxy.errors import SbproxyError
from sbproxy.errors.admin import ConfigMoved, InvalidBody
from sbproxy.errors.config import ConfigInvalid
from sbproxy.errors.observe import InvalidParameter, UnknownParameter

LOG = logging.getLogger("sbproxy.admin")
ROUTE = "/admin/config"
IF_MATCH = "if_match"
MAX_REVISION = 64


class ConfigRoutes:
    def __init__(self, deps: AdminDeps) -> None:
        self._reloader = deps.reloader

    def routes(self) -> list[web.RouteDef]:
        return [web.get(ROUTE, self.show), web.put(ROUTE, self.replace), web.post(ROUTE, self.replace)]

    async def show(self, request: web.Request) -> web.Response:
        if request.query:
            raise UnknownParameter(next(iter(request.query))[:64], ())
        try:
            found = await self._reloader.config_text()
        except SbproxyError as error:
            return self._refused(error, reload_status_of(error))
        return reply(ConfigAnswer(yaml=found.yaml, revision=found.revision))

    async def replace(self, request: web.Request) -> web.Response:
        new = NewConfig(_text(await read_body(request)), _expected(request))
        try:
            outcome = await self._reloader.replace_config(new)
        except SbproxyError as error:
            return self._refused(error, config_write_status_of(error))
        principal = request[PRINCIPAL]
        audit(
            request,
            principal.username,
            principal.role,
            "replaced",
            action="config_replace",
            prior_revision=new.if_match,
            next_revision=outcome.config_revision,
        )
        return reply(views.reload_outcome(outcome))

    def _refused(self, error: SbproxyError, status: int) -> web.Response:
        text = without_folder(str(error), self._reloader.config_path)
        if status >= 500:
            LOG.error("configuration: %s", error)
        # A revision mismatch is told from every other conflict by having no code.
        code = None if isinstance(error, ConfigMoved) else reason_of(error)
        return refuse(status, text, code=code, extra=self._problems(error))

    def _problems(self, error: SbproxyError) -> dict[str, Any]:
        if not isinstance(error, ConfigInvalid):
            return {}
        path = self._reloader.config_path
        rows = [
            ConfigProblem(
                file=without_folder(each.file, path),
                path=each.path,
                reason=without_folder(each.reason, path),
                line=each.line,
                near=each.near,
            )
            for each in error.problems
        ]
        return {"problems": [row.model_dump(mode="json") for row in rows]}


def _text(body: bytes) -> str:
    try:
        text = decode(body)
    except ValueError as error:
        raise InvalidBody(f"the body {error}; expected the whole sb.yml") from None
    if not text.strip():
        raise InvalidBody("the body is empty; expected the whole sb.yml")
    return text


def _expected(request: web.Request) -> str | None:
    """``if_match``. Raises UnknownParameter or InvalidParameter."""
    unknown = [name for name in request.query if name != IF_MATCH]
    if unknown:
        raise UnknownParameter(unknown[0][:64], (IF_MATCH,))
    given = request.query.getall(IF_MATCH, [])
    if not given:
        return None
    if len(given) > 1 or not 0 < len(given[0]) <= MAX_REVISION:
        raise InvalidParameter(IF_MATCH, "one revision, as GET /admin/config returns it")
    return given[0]
