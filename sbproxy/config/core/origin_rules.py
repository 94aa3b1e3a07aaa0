"""Rules of ``origins`` that look at more than one value: hosts, providers, managed deployments (sections 4, 5, 47)."""

from __future__ import annotations

from collections.abc import Iterator

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.hosts import base_url_reason, origin_host_reason
from sbproxy.config.core.model_errors import nearest
from sbproxy.config.core.origins import ProviderConfig
from sbproxy.config.core.provider_catalog import BASE_URLS, MANAGED, OTHER_PROTOCOLS, provider_type
from sbproxy.config.core.tree import KeyPath, quoted
from sbproxy.config.core.unsupported import NOT_YET


def origin_findings(config: SbConfig, hosts: tuple[str, ...], deployments: frozenset[str] | None) -> Iterator[Finding]:
    """``deployments``: every declared id, or None when they cannot be told."""
    for host in hosts:
        reason = origin_host_reason(host)
        if reason is not None:
            yield Finding(("origins", host), reason, of_name=True)
    for host, origin in config.origins.items():
        path: KeyPath = ("origins", host, "action", "providers")
        yield from _same_names(origin.action.providers, path)
        for index, provider in enumerate(origin.action.providers):
            if provider.managed:
                yield from _managed(provider, (*path, index), deployments)
            else:
                yield from _plain(provider, (*path, index))
            yield from _default_model(provider, (*path, index))


def public_models(provider: ProviderConfig) -> tuple[str, ...]:
    """Names that clients use; a managed provider without models exposes its deployment id. Empty: any name."""
    if provider.models or not provider.managed:
        return tuple(provider.models)
    return (provider.deployment,) if provider.deployment else ()


def _same_names(providers: list[ProviderConfig], path: KeyPath) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for index, provider in enumerate(providers):
        before = first.setdefault(provider.name, index)
        if before == index:
            continue
        other = providers[before]
        both = [name for name in public_models(provider) if name in public_models(other)]
        if both and provider.deployment != other.deployment:
            reason = f"{quoted(both[0])} of {quoted(provider.name)} already is deployment {other.deployment}"
        else:
            reason = f"{quoted(provider.name)} is already the name of providers[{before}]; names must differ"
        yield Finding((*path, index, "name"), reason)


def _managed(provider: ProviderConfig, path: KeyPath, deployments: frozenset[str] | None) -> Iterator[Finding]:
    refused = {
        "api_key": provider.api_key is not None,
        "base_url": provider.base_url is not None,
        "allow_private_base_url": provider.allow_private_base_url,
        "model_map": bool(provider.model_map),
        "timeout_ms": provider.timeout_ms is not None,
    }
    for key, written in refused.items():
        if written:
            yield Finding((*path, key), f"a {MANAGED} provider has no {key}; its deployment says what it is")
    if provider.deployment is None:
        yield Finding((*path, "deployment"), f"provider_type {MANAGED} needs the id of a deployment")
    elif deployments is not None and provider.deployment not in deployments:
        known = tuple(sorted(deployments))
        reason = f"there is no deployment {quoted(provider.deployment)} in proxy.model_host.deployments"
        yield Finding((*path, "deployment"), reason, nearest(provider.deployment, known), known)


def _plain(provider: ProviderConfig, path: KeyPath) -> Iterator[Finding]:
    kind = provider_type(provider)
    if provider.deployment is not None:
        yield Finding((*path, "deployment"), f"only a provider of provider_type {MANAGED} has a deployment")
    elif kind in OTHER_PROTOCOLS:
        at = "provider_type" if provider.provider_type else "name"
        yield Finding((*path, at), f"the protocol of {kind} {NOT_YET}; only OpenAI-compatible providers are")
    elif kind is not None and kind not in BASE_URLS:
        known = (MANAGED, *BASE_URLS)
        yield Finding((*path, "provider_type"), f"{quoted(kind)} is not a known provider", nearest(kind, known), known)
    elif provider.base_url is None and kind is None:
        known = tuple(BASE_URLS)
        reason = f"{quoted(provider.name)} is not a known provider, so it needs a base_url or a provider_type"
        yield Finding((*path, "base_url"), reason, nearest(provider.name, known))
    if provider.base_url is not None:
        reason_or_none = base_url_reason(provider.base_url, allow_private=provider.allow_private_base_url)
        if reason_or_none is not None:
            yield Finding((*path, "base_url"), reason_or_none)


def _default_model(provider: ProviderConfig, path: KeyPath) -> Iterator[Finding]:
    names = public_models(provider)
    wanted = provider.default_model
    if wanted is not None and names and wanted not in names:
        yield Finding((*path, "default_model"), f"{quoted(wanted)} is not in models", nearest(wanted, names), names)
