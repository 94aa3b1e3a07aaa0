"""Runs a call on a deployment of this machine: admission, the engine, and one more try when its connection fails early.

The permit is released exactly once a try, after the engine's connection is closed, however the try ends.
"""

from __future__ import annotations

from dataclasses import replace

from sbproxy.engines.core.model import Endpoint
from sbproxy.errors.gateway import UnsupportedByModel, UpstreamBroken, UpstreamUnreachable
from sbproxy.gateway.call import Call
from sbproxy.gateway.core.normalise import normalise
from sbproxy.gateway.core.providers import JSON_HEADERS, ManagedProvider
from sbproxy.gateway.core.refusals import engine_refusal
from sbproxy.gateway.core.request_body import Inference, body_for
from sbproxy.gateway.exchange import HeaderPairs, Upstream, UpstreamClient
from sbproxy.gateway.ports import ManagedModels, Permit
from sbproxy.gateway.relay import relay
from sbproxy.modelhost.core.status import Priority

ENGINE_SILENCE_S = 1800.0
"""How long an engine may say nothing: a unary answer says nothing until it is whole, and a CPU takes its time."""
_PRIORITY: Priority = "standard"
_TRIES = 2


class ManagedDispatch:
    """Dispatch to this daemon's own engines. Keeps what is fixed about each engine it has met."""

    def __init__(self, managed: ManagedModels, client: UpstreamClient) -> None:
        self._managed = managed
        self._client = client
        self._routes: dict[int, tuple[Endpoint, Upstream, HeaderPairs]] = {}

    async def run(self, call: Call, provider: ManagedProvider) -> None:
        """Answer the call.

        Raises what ``normalise`` and admission raise, UnsupportedByModel, and what the engine's answer stands for. A
        connection that fails before anything reached the client is reported and tried once more: the engine may have
        been restarted. An answer of the engine, good or bad, is never asked for twice.
        """
        call.record.provider = provider.name
        call.record.deployment = provider.deployment
        call.record.route_class = "local"
        if call.surface not in provider.surfaces:
            raise UnsupportedByModel(call.model, call.surface)
        inference = _for_engine(call, provider)
        for tried in range(1, _TRIES + 1):
            permit = await self._admit(call, provider.deployment)
            try:
                await self._try(call, permit, inference)
                return
            except (UpstreamUnreachable, UpstreamBroken) as error:
                permit.engine_failed(str(error))
                if call.started or tried == _TRIES:
                    raise
                call.record.retry_count += 1
            finally:
                permit.release()

    async def _admit(self, call: Call, deployment: str) -> Permit:
        permit = self._managed.try_acquire(deployment)
        if permit is not None:
            return permit
        waited_from = call.clock()
        try:
            return await self._managed.acquire(deployment, call.governed.priority if call.governed else _PRIORITY)
        finally:
            call.record.queued_ms = (call.record.queued_ms or 0.0) + (call.clock() - waited_from) * 1000

    async def _try(self, call: Call, permit: Permit, inference: Inference) -> None:
        endpoint, upstream, headers = self._route(permit)
        response = await self._client.send(
            upstream,
            "POST",
            "/v1" + call.path,
            headers,
            body_for(inference, endpoint.alias),
            timeout_s=ENGINE_SILENCE_S,
        )
        try:
            refused = await relay(call, response, permit.deployment)
        finally:
            response.close()
        if refused is not None:
            status, explanation = refused
            raise engine_refusal(status, explanation, model=call.model, surface=call.surface)

    def _route(self, permit: Permit) -> tuple[Endpoint, Upstream, HeaderPairs]:
        endpoint = permit.endpoint
        route = self._routes.get(endpoint.port)
        # By port, for each replica has its own. Each launch makes a new endpoint with a new key: nothing old is used.
        if route is None or route[0] is not endpoint:
            headers = (*JSON_HEADERS, (b"authorization", b"Bearer " + endpoint.api_key.encode()))
            route = self._routes[endpoint.port] = (endpoint, Upstream(endpoint.host, endpoint.port), headers)
        return route


def _for_engine(call: Call, provider: ManagedProvider) -> Inference:
    """The request as engines get it. The call keeps the caller's own, which another kind of provider may read."""
    given = call.inference
    document = normalise(call.surface, given.document, call.model, provider.limits)
    return given if document is given.document else replace(given, document=document)
