"""Virtual keys on live traffic: who calls, what the key allows, and what a request may use (contracts sections 7, 8).

Rules are the keys room's; here they meet a request. A request without a key, where none is needed, passes by.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sbproxy.errors import SbproxyError
from sbproxy.errors.gateway import ModelNotFound, UpstreamUnreachable
from sbproxy.errors.governance import GovernanceRefusal
from sbproxy.errors.keys import CredentialUnusable, KeyRefused, ProviderNotAllowed
from sbproxy.errors.modelhost import ModelHostError
from sbproxy.gateway.call import Call, Governed
from sbproxy.gateway.core.key_use import ceiling_tokens, tool_names
from sbproxy.gateway.core.providers import HostedProvider, Provider
from sbproxy.gateway.core.routes import OriginRoutes
from sbproxy.gateway.core.surfaces import shown
from sbproxy.gateway.core.usage import estimate_tokens
from sbproxy.gateway.ports import CredentialVault, Keyring, PriceOf
from sbproxy.keys.core.caller import Known, Unresolved
from sbproxy.keys.core.governance import Ask as UsageAsk
from sbproxy.keys.core.governance import Governor
from sbproxy.keys.core.policy import PERMITS, Ask, admit, may_use_provider, model_reason
from sbproxy.keys.core.record import DEFAULT_TENANT, KeyRecord
from sbproxy.keys.governance_usage import limits_of


class KeyGate:
    """``price_of`` gives micros for a million prompt and answer tokens; None for a model without a price, which costs
    nothing (``missing_rate: zero_cost``)."""

    def __init__(
        self,
        keyring: Keyring,
        governor: Governor,
        vault: CredentialVault | None,
        price_of: PriceOf,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._keyring = keyring
        self._governor = governor
        self._vault = vault
        self._price_of = price_of
        self._wall_clock = wall_clock

    async def identify(self, call: Call, origin: OriginRoutes) -> None:
        """Note the key of a request. Raises a leaf of KeyRefused, or KeyStoreUnavailable."""
        found = self._keyring.lookup(call.exchange.request.headers, origin.host, origin.requires_key)
        if type(found) is Unresolved:
            found = await self._keyring.resolve(found)
        if isinstance(found, KeyRefused):
            raise found
        if type(found) is Known:
            call.governed = Governed(found.record)
            record = call.record
            record.api_key_id, record.key_mode = found.record.key_id, "minted"

    async def admit(self, call: Call, origin: OriginRoutes, provider: Provider) -> Provider:
        """The provider that may answer, with the request's usage reserved. Raises what the key's policy, its limits or
        its credential refuse."""
        governed = call.governed
        if governed is None:
            return provider
        record = governed.key
        document = call.inference.document
        ask = Ask(call.model, tools=tool_names(document))
        verdict = admit(record, ask, self._wall_clock())
        if isinstance(verdict, KeyRefused):
            raise verdict
        provider = self._rerouted(call, origin, provider, verdict.model)
        if not may_use_provider(record, provider.name):
            others = origin.spares.get(call.model, ())
            spare = next((each for each in others if may_use_provider(record, each.name)), None)
            if spare is None:
                raise ProviderNotAllowed(record.key_id, provider.name)
            provider = spare
        if verdict.inject_tools and call.surface == "chat_completions":
            document["tools"] = [*(document.get("tools") or ()), *(dict(tool) for tool in verdict.inject_tools)]
        governed.priority = verdict.priority
        if record.credential_id is not None and type(provider) is HostedProvider:
            governed.credential = await self._presented(record, provider)
        await self._reserve(call, governed, origin, provider)
        return provider

    def may_fall_back(self, call: Call, provider: Provider) -> bool:
        """Whether the caller's key allows another provider of the route; one with a credential of its own never."""
        if call.governed is None:
            return True
        record = call.governed.key
        return record.credential_id is None and may_use_provider(record, provider.name)

    def settle(self, call: Call, failure: BaseException | None) -> None:
        """Book what the request used: reported, else estimated; nothing when it never reached a model."""
        governed = call.governed
        if governed is None or governed.reservation is None:
            return
        reservation, governed.reservation = governed.reservation, None
        record = call.record
        if record.tokens_in is None and isinstance(failure, ModelHostError | UpstreamUnreachable | GovernanceRefusal):
            self._governor.release(reservation)
            return
        estimated = record.usage_estimated
        tokens_in, tokens_out = record.tokens_in or 0, record.tokens_out or 0
        if record.tokens_in is None and not isinstance(failure, SbproxyError):
            # The client left before the answer told anything: the prompt was worked on.
            tokens_in, estimated = estimate_tokens(len(call.exchange.request.body)), True
        micros = _cost(governed, tokens_in, tokens_out)
        self._governor.settle(reservation, tokens_in + tokens_out, micros, estimated=estimated)

    def _rerouted(self, call: Call, origin: OriginRoutes, provider: Provider, model: str | None) -> Provider:
        if model is None or model == call.model:
            return provider
        other = origin.provider_for(model)
        if other is None:
            raise ModelNotFound(shown(model), origin.near(model))
        call.model = call.record.model = model
        return other

    async def _reserve(self, call: Call, governed: Governed, origin: OriginRoutes, provider: Provider) -> None:
        body_bytes = len(call.exchange.request.body)
        tokens = ceiling_tokens(call.surface, call.inference.document, body_bytes, provider)
        # What a local engine answers costs no money.
        if type(provider) is HostedProvider:
            governed.price = self._price_of(origin.host, provider.name, call.model)
        prompt = min(tokens, estimate_tokens(body_bytes))
        ask = UsageAsk(tokens, _cost(governed, prompt, tokens - prompt))
        key_id, limits = governed.key.key_id, limits_of(governed.key)
        answer = self._governor.try_reserve(key_id, limits, ask, self._wall_clock())
        if answer is None:
            answer = await self._governor.reserve(key_id, limits, ask)
        if isinstance(answer, GovernanceRefusal):
            raise answer
        governed.reservation = answer

    async def _presented(self, record: KeyRecord, provider: HostedProvider) -> tuple[bytes, bytes]:
        if self._vault is None:
            raise CredentialUnusable(record.key_id, "there is no credential store")
        found = self._vault.cached(record, provider.name, DEFAULT_TENANT)
        if found is None:
            found = await self._vault.presented(record, provider.name, DEFAULT_TENANT)
        return found.header, found.value


def _cost(governed: Governed, tokens_in: int, tokens_out: int) -> int:
    """Millionths of a dollar, rounded up, so that small requests are not free."""
    if governed.price is None:
        return 0
    prompt, completion = governed.price
    return -(-(tokens_in * prompt + tokens_out * completion) // 1_000_000)


def allowed_by(key: KeyRecord) -> Callable[[str], bool]:
    """Which model names a key may see."""
    return lambda model: model_reason(key, model) in PERMITS
