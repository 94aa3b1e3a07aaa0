"""Decides which provider of which origin serves a model; compiled once from the configuration, then only looked up.

Building connections' details out of a provider is ``providers``'s work; hosts are matched by ``hosts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sbproxy.config.core.origin_rules import public_models
from sbproxy.config.core.origins import AiProxyAction, OriginConfig, ProviderConfig
from sbproxy.gateway.core.hosts import HostTable, compile_hosts
from sbproxy.gateway.core.providers import HostedProvider, ModelFacts, Provider, compile_provider
from sbproxy.near import near_names


@dataclass(frozen=True, slots=True)
class OriginRoutes:
    """One origin. ``named`` holds every model that may be asked for by a name the configuration knows, with the
    provider that answers; ``spares`` the others that offer it, in order, where there are any.

    ``open_provider`` takes any other name that the lists allow. ``default_model`` stands in when a request names none.
    """

    host: str
    named: Mapping[str, Provider]
    open_provider: HostedProvider | None
    default_model: str | None
    allowed: frozenset[str]
    blocked: frozenset[str]
    max_body_bytes: int
    spares: Mapping[str, tuple[Provider, ...]] = field(default_factory=dict)
    requires_key: bool = False

    def provider_for(self, model: str) -> Provider | None:
        """The provider that serves a public model name here, or None."""
        provider = self.named.get(model)
        if provider is None and self.open_provider is not None and self.permits(model):
            return self.open_provider
        return provider

    def permits(self, model: str) -> bool:
        """The origin's own lists; blocking wins, an empty allow list allows all (contracts sections 5 and 50)."""
        return model not in self.blocked and (not self.allowed or model in self.allowed)

    def near(self, model: str) -> tuple[str, ...]:
        """Names close to a wrong one."""
        return near_names(model, self.named)


@dataclass(frozen=True, slots=True)
class RouteTable:
    """All origins under one configuration revision."""

    revision: str
    hosts: HostTable[OriginRoutes]

    def origin_for(self, host: str) -> OriginRoutes | None:
        """The origin for a lower-case host without port, or None."""
        return self.hosts.find(host)


def compile_routes(
    origins: Mapping[str, OriginConfig],
    *,
    revision: str,
    models: Mapping[str, ModelFacts] | None = None,
    keys_required: bool = False,
) -> RouteTable:
    """Routes for ``origins``. ``models`` is what is known of each deployment's model; with ``keys_required`` no origin
    answers a request without a virtual key.

    Raises UnusableProvider for a provider that no request could be sent to.
    """
    known = models or {}
    return RouteTable(
        revision,
        compile_hosts(
            {host: _compile_origin(host, origin.action, known, keys_required) for host, origin in origins.items()}
        ),
    )


def _compile_origin(
    host: str, action: AiProxyAction, known: Mapping[str, ModelFacts], keys_required: bool
) -> OriginRoutes:
    allowed, blocked = frozenset(action.allowed_models), frozenset(action.blocked_models)
    offers: dict[str, list[Provider]] = {}
    open_provider: HostedProvider | None = None
    defaults: list[str] = []
    for config in in_order(action.providers):
        provider = compile_provider(host, config, known)
        for model in _public_names(config):
            offers.setdefault(model, []).append(provider)
        if config.default_model is not None:
            defaults.append(config.default_model)
        if open_provider is None and isinstance(provider, HostedProvider) and not config.models:
            open_provider = provider
    if open_provider is not None:
        # One that lists a name wins over one that would take any.
        for listed in offers.values():
            if open_provider not in listed:
                listed.append(open_provider)
    routes = OriginRoutes(host, {}, open_provider, None, allowed, blocked, action.max_body_size)
    visible = {model: listed[0] for model, listed in offers.items() if routes.permits(model)}
    spares = {model: tuple(offers[model][1:]) for model in visible if len(offers[model]) > 1}
    default = next((model for model in defaults if model in visible), None)
    return OriginRoutes(host, visible, open_provider, default, allowed, blocked, action.max_body_size, spares,
        keys_required or action.require_governed_key)  # fmt: skip


def in_order(providers: list[ProviderConfig]) -> list[ProviderConfig]:
    """The enabled ones; lower priority first, those without one last, otherwise as written."""
    enabled = [each for each in providers if each.enabled]
    return sorted(enabled, key=lambda each: (each.priority is None, each.priority or 0))


def _public_names(config: ProviderConfig) -> list[str]:
    names = list(public_models(config) or config.model_map)
    if config.default_model is not None and config.default_model not in names:
        names.append(config.default_model)
    return names
