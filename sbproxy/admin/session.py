"""Login, logout and session discovery (document 2, "Session routes"); they run before the general gate."""

from __future__ import annotations

from aiohttp import web
from pydantic import ValidationError

from sbproxy.admin.accounts import MAX_CREDENTIAL, Credentials, basic_credentials
from sbproxy.admin.audit import audit
from sbproxy.admin.authentication import ISSUED, Authenticator, unauthorized
from sbproxy.admin.gate import Gate
from sbproxy.admin.replies import read_object, reply, reply_json
from sbproxy.api.control import LoginAnswer, LoginRequest, SessionAnswer
from sbproxy.errors.admin import InvalidBody

_SHAPE = "{username, password} as JSON, or an Authorization: Basic header"


class SessionRoutes:
    def __init__(self, authenticator: Authenticator, gate: Gate) -> None:
        self._authenticator = authenticator
        self._gate = gate

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/admin/login", self.login),
            web.post("/admin/logout", self.logout),
            web.get("/admin/session", self.session),
        ]

    async def login(self, request: web.Request) -> web.Response:
        """200 with the CSRF token and the cookie; 400 for a body that cannot be read; 401 for wrong credentials."""
        given = basic_credentials(request.headers.get("Authorization")) or await _from_body(request)
        account = await self._authenticator.log_in(request, given)
        if account is None:
            return unauthorized()
        session, token = self._authenticator.sessions.issue(account.username)
        request[ISSUED] = (session, token)
        audit(request, account.username, account.role, "login")
        return reply(LoginAnswer(role=account.role, csrf_token=session.csrf, username=account.username))

    async def logout(self, request: web.Request) -> web.Response:
        """Always 200: whoever has no session is logged out already."""
        session = self._authenticator.session_of(request)
        if session is not None:
            self._authenticator.sessions.revoke(session)
        account = self._authenticator.accounts.find(session.username) if session else None
        audit(request, account.username if account else "-", account.role if account else "-", "logout")
        response = reply_json({"authenticated": False})
        response.headers["Set-Cookie"] = self._gate.cookie("", 0)
        return response

    async def session(self, request: web.Request) -> web.Response:
        """Never 401. A Basic caller learns the CSRF token of the session that this answer starts."""
        principal = self._authenticator.identify(request)
        if principal is None:
            return reply(SessionAnswer(authenticated=False), omit_absent=True)
        issued = request.get(ISSUED)
        session = issued[0] if issued else self._authenticator.session_of(request)
        answer = SessionAnswer(
            authenticated=True,
            username=principal.username,
            role=principal.role,
            via_session=principal.session is not None,
            csrf_token=session.csrf if session else None,
        )
        return reply(answer, omit_absent=True)


async def _from_body(request: web.Request) -> Credentials:
    try:
        body = LoginRequest.model_validate(await read_object(request, _SHAPE))
    except ValidationError:
        raise InvalidBody(f"the body must be {_SHAPE}") from None
    if max(len(body.username), len(body.password)) > MAX_CREDENTIAL:
        raise InvalidBody(f"username and password may have at most {MAX_CREDENTIAL} characters")
    return Credentials(body.username, body.password)
