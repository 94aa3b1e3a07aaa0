"""The checks before any handler, in the order of contracts section 3: size, rate, address, CORS, principal, CSRF, role.

Answers the refusals of that section's table; who a caller is, ``authentication`` finds out.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from sbproxy.admin.audit import audit
from sbproxy.admin.authentication import (
    CSRF_HEADER,
    ISSUED,
    Authenticator,
    Principal,
    too_many_requests,
    unauthorized,
)
from sbproxy.admin.core.addresses import AddressGate, counted_as
from sbproxy.admin.core.page_origin import is_foreign_page
from sbproxy.admin.core.rate_limit import GLOBAL_FACTOR, RateLimit
from sbproxy.admin.core.session_token import SESSION_SECONDS
from sbproxy.admin.error_boundary import error_boundary
from sbproxy.admin.replies import MAX_BODY, refuse, too_large
from sbproxy.admin.sessions import COOKIE
from sbproxy.config.core.document import AdminConfig
from sbproxy.errors.admin import BodyNotJson
from sbproxy.errors.observe import UnknownParameter

PROBES = frozenset({"/healthz", "/health", "/readyz", "/ready", "/livez", "/live"})
SESSION_ROUTES = frozenset({"/admin/login", "/admin/logout", "/admin/session"})
PUBLIC = PROBES | SESSION_ROUTES | {"/.well-known/sbproxy/quote-keys.json"}
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
READS_QUERY = frozenset({"/api/requests", "/admin/model-host/jobs", "/admin/config"})
"""The routes that take query parameters; their handlers refuse what they do not know."""

READS_YAML = frozenset({"/admin/config"})
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml")
"""None of them is a form's, so a page of another origin cannot send them unasked."""

READ_ONLY_TEXT = "forbidden: read-only operator cannot perform this action"
CSRF_TEXT = "CSRF token missing or invalid"
FOREIGN_TEXT = "forbidden: sent by a page of another origin; proxy.admin.cors_origins lists those that may"

PRINCIPAL: web.RequestKey[Principal] = web.RequestKey("principal", Principal)


class Gate:
    """One gate a listener. ``monotonic`` is in seconds."""

    def __init__(self, config: AdminConfig, authenticator: Authenticator, monotonic: Callable[[], float]) -> None:
        self._authenticator = authenticator
        self._monotonic = monotonic
        self._addresses = AddressGate(config.allow_ips)
        self._cors = frozenset(config.cors_origins)
        self._secure = config.tls is not None
        per_minute = config.rate_limit_per_minute
        self._rate = RateLimit(per_minute, per_minute * GLOBAL_FACTOR)

    def middlewares(self) -> list[Middleware]:
        """Outermost first. The boundary stands twice: around the gate, and inside so that the audit sees statuses."""
        return [
            error_boundary,
            self.bound_size,
            self.limit_rate,
            self.check_address,
            self.answer_preflight,
            self.authorize,
            error_boundary,
            self.refuse_unread,
        ]

    @web.middleware
    async def bound_size(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        # A body without a declared length is bounded while it is read (client_max_size), with the same answer.
        if (request.content_length or 0) > MAX_BODY:
            return too_large()
        return await handler(request)

    @web.middleware
    async def limit_rate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        address, now = counted_as(request.remote), self._monotonic()
        if request.path not in PROBES and not self._rate.take(address, now):
            return too_many_requests(self._rate.retry_after_s(address, now))
        return await handler(request)

    @web.middleware
    async def check_address(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._addresses.admits(request.remote):
            return refuse(403, "forbidden: this client address is not in proxy.admin.allow_ips")
        return await handler(request)

    @web.middleware
    async def answer_preflight(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "OPTIONS":
            return await handler(request)
        response = web.Response(status=204)
        if self._cors_origin(request):
            response.headers["Access-Control-Allow-Methods"] = "GET, POST, PUT, PATCH, DELETE"
            response.headers["Access-Control-Allow-Headers"] = f"Authorization, Content-Type, {CSRF_HEADER}"
            response.headers["Access-Control-Max-Age"] = "600"
        return response

    @web.middleware
    async def authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        foreign = request.method not in SAFE_METHODS and self._from_foreign_page(request)
        if request.path in PUBLIC:
            if foreign:
                audit(request, "-", "-", "403")
                return refuse(403, FOREIGN_TEXT)
            # Their handlers look at credentials themselves, where they have a use for them at all.
            return await handler(request)
        principal = self._authenticator.identify(request)
        if principal is None:
            return unauthorized()
        request[PRINCIPAL] = principal
        if request.method in SAFE_METHODS:
            return await handler(request)
        refusal = refuse(403, FOREIGN_TEXT) if foreign else self._refusal(request, principal)
        response = refusal or await handler(request)
        audit(request, principal.username, principal.role, str(response.status))
        return response

    @web.middleware
    async def refuse_unread(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses what no handler would look at: parameters, and bodies in a form that a web page can send unasked."""
        route = request.match_info.route
        if request.match_info.http_exception is None and route.resource is not None:
            if request.query and route.resource.canonical not in READS_QUERY:
                raise UnknownParameter(next(iter(request.query))[:64], ())
            if request.method not in SAFE_METHODS and request.body_exists:
                _check_kind(request.content_type, yaml=route.resource.canonical in READS_YAML)
        return await handler(request)

    async def decorate(self, request: web.Request, response: web.StreamResponse) -> None:
        """``on_response_prepare``: what every answer carries, event streams included."""
        response.headers["Server"] = "sbproxy"
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers.setdefault("Cache-Control", "no-store")
        if self._cors:
            response.headers["Vary"] = "Origin"
        if origin := self._cors_origin(request):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Credentials"] = "true"
            response.headers["Access-Control-Expose-Headers"] = CSRF_HEADER
        if issued := request.get(ISSUED):
            session, token = issued
            response.headers[CSRF_HEADER] = session.csrf
            response.headers["Set-Cookie"] = self.cookie(token, SESSION_SECONDS)

    def cookie(self, token: str, max_age_s: int) -> str:
        secure = "; Secure" if self._secure else ""
        return f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={max_age_s}{secure}"

    def _refusal(self, request: web.Request, principal: Principal) -> web.Response | None:
        given = request.headers.get(CSRF_HEADER, "")
        session = principal.session
        if session is not None and not hmac.compare_digest(given.encode("utf-8", "replace"), session.csrf.encode()):
            return refuse(403, CSRF_TEXT)
        return refuse(403, READ_ONLY_TEXT) if principal.role == "read_only" else None

    def _from_foreign_page(self, request: web.Request) -> bool:
        own = f"{'https' if self._secure else 'http'}://{request.headers.get('Host', '')}"
        origins = request.headers.getall("Origin", ())
        return is_foreign_page(origins, request.headers.get("Sec-Fetch-Site"), own=own, known=self._cors)

    def _cors_origin(self, request: web.BaseRequest) -> str | None:
        origin = request.headers.get("Origin")
        return origin if origin in self._cors else None


def _check_kind(content_type: str, *, yaml: bool) -> None:
    """Raises BodyNotJson."""
    if yaml and content_type not in YAML_TYPES:
        raise BodyNotJson("YAML", YAML_TYPES[0])
    if not yaml and content_type != "application/json" and not content_type.endswith("+json"):
        raise BodyNotJson
