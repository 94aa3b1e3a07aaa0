"""Runs a call on a hosted provider, within one time-out for the whole exchange (contracts section 5)."""

from __future__ import annotations

from sbproxy.errors import SbproxyError
from sbproxy.errors.gateway import UpstreamTimeout
from sbproxy.gateway.call import Call
from sbproxy.gateway.core.providers import JSON_HEADERS, HostedProvider
from sbproxy.gateway.core.refusals import provider_refusal
from sbproxy.gateway.core.request_body import body_for
from sbproxy.gateway.exchange import HeaderPairs, UpstreamClient, UpstreamResponse
from sbproxy.gateway.relay import relay

DEFAULT_TIMEOUT_S = 30.0
"""For the answer when ``timeout_ms`` is unset; a stream that has begun in time may then go on."""
STREAM_CEILING_S = 3600.0
"""The longest stream of a provider without a ``timeout_ms`` of its own."""


class HostedDispatch:
    """Dispatch to plain OpenAI-compatible endpoints."""

    def __init__(self, client: UpstreamClient) -> None:
        self._client = client

    async def run(self, call: Call, provider: HostedProvider) -> None:
        """Answer the call. Raises UpstreamError leaves and what the provider's answer stands for."""
        record = call.record
        record.provider = provider.name
        record.route_class = "external"
        limit = provider.timeout_s
        if limit is None:
            limit = DEFAULT_TIMEOUT_S
            call.stretch_s = STREAM_CEILING_S
        model = provider.model_map.get(call.model, call.model)
        body = body_for(call.inference, model)
        until = call.clock() + limit
        response: UpstreamResponse | None = None
        try:
            path = provider.prefix + call.path
            response = await self._client.send(
                provider.upstream, "POST", path, _headers(call, provider), body, timeout_s=None, until=until
            )
            refused = await relay(call, response, provider.name)
        except UpstreamTimeout:
            raise UpstreamTimeout(provider.name, limit) from None
        finally:
            if response is not None:
                response.close()
        if refused is not None:
            raise _refusal(provider, call.model, model, response, refused)


def _headers(call: Call, provider: HostedProvider) -> HeaderPairs:
    """The provider's own, or with the credential that the caller's key is bound to in place of its credential."""
    credential = call.governed.credential if call.governed is not None else None
    if credential is None:
        return provider.headers
    return (*JSON_HEADERS, credential)


def _refusal(
    provider: HostedProvider, public: str, upstream_model: str, response: UpstreamResponse, refused: tuple[int, bytes]
) -> SbproxyError:
    status, explanation = refused
    return provider_refusal(
        status,
        explanation,
        provider=provider.name,
        public=public,
        upstream_model=upstream_model,
        retry_after=response.header(b"retry-after"),
        secret=provider.secret,
    )
