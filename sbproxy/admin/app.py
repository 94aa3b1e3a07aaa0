"""Builds the admin application: the gate in front, one module a resource behind it."""

from __future__ import annotations

from aiohttp import web

from sbproxy.admin.accounts import Accounts
from sbproxy.admin.artifacts import ArtifactRoutes
from sbproxy.admin.authentication import Authenticator
from sbproxy.admin.config import ConfigRoutes
from sbproxy.admin.control import ControlRoutes
from sbproxy.admin.credentials import CredentialRoutes
from sbproxy.admin.event_stream import EventStreams
from sbproxy.admin.gate import Gate
from sbproxy.admin.jobs import JobRoutes
from sbproxy.admin.keys import KeyRoutes
from sbproxy.admin.model_host import ModelHostRoutes
from sbproxy.admin.ports import AdminDeps
from sbproxy.admin.probes import ProbeRoutes
from sbproxy.admin.replies import MAX_BODY
from sbproxy.admin.requests import RequestRoutes
from sbproxy.admin.session import SessionRoutes
from sbproxy.admin.sessions import Sessions
from sbproxy.admin.value import ValueRoutes


def build_app(deps: AdminDeps) -> web.Application:
    """Call it within the running event loop. Raises PasswordHashInvalid."""
    authenticator = Authenticator(Accounts(deps.config), Sessions(deps.now), deps.monotonic)
    gate = Gate(deps.config, authenticator, deps.monotonic)
    streams = EventStreams(deps.max_streams, deps.max_own_streams, deps.heartbeat_s)
    app = web.Application(middlewares=gate.middlewares(), client_max_size=MAX_BODY)
    for resource in (
        ProbeRoutes(deps),
        SessionRoutes(authenticator, gate),
        ModelHostRoutes(deps),
        ArtifactRoutes(deps),
        JobRoutes(deps, streams),
        ValueRoutes(deps),
        RequestRoutes(deps, streams),
        ControlRoutes(deps),
        ConfigRoutes(deps),
        KeyRoutes(deps),
        CredentialRoutes(deps),
    ):
        app.add_routes(resource.routes())
    app.on_response_prepare.append(gate.decorate)
    app.on_shutdown.append(streams.close)
    return app
