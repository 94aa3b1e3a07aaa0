"""Rules of ``origins`` that look at more than one value: hosts, providers, managed deployments (sections 4, 5, 47)."""

from __future__ import annotations

from collections.abc import Iterator

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.hosts import base_url_reason, origin_host_reason
from sbproxy.config.core.model_errors import nearest
from sbproxy.config.core.origins import ProviderConfig
from sbproxy.config.core.provider_catalog import BASE_URLS, MANAGED, OTHER_PROTOCOLS, provider_type
from sbproxy.config.core.secret_forms import may_be_shown
from sbproxy.config.core.serve_rules import served_names, serving_findings
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
            if provider.serve is not None:
                yield from serving_findings(provider, provider.serve, (*path, index))
            elif provider.managed:
                yield from _managed(provider, (*path, index), deployments)
            else:
                yield from _plain(provider, (*path, index))
            yield from _default_model(provider, (*path, index))


def public_models(provider: ProviderConfig) -> tuple[str, ...]:
    """Names that clients use; a managed provider without models exposes its deployment id. Empty: any name."""
    if provider.serve is not None:
        return served_names(provider.serve)
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
        if both and provider.managed and other.managed and provider.deployment != other.deployment:
            reason = f"{quoted(both[0])} of {quoted(provider.name)} already is deployment {other.deployment}"
        else:
            reason = f"{quoted(provider.name)} is already the name of providers[{before}]; names must differ"
        yield Finding((*path, index, "name"), reason, depends_on=((*path, before, "name"),))


def _managed(provider: ProviderConfig, path: KeyPath, deployments: frozenset[str] | None) -> Iterator[Finding]:
    kind: tuple[KeyPath, ...] = ((*path, "provider_type"),)
    refused = {
        "api_key": provider.api_key is not None,
        "base_url": provider.base_url is not None,
        "allow_private_base_url": provider.allow_private_base_url,
        "model_map": bool(provider.model_map),
        "timeout_ms": provider.timeout_ms is not None,
    }
    for key, written in refused.items():
        if written:
            reason = f"a {MANAGED} provider has no {key}; its deployment says what it is"
            yield Finding((*path, key), reason, depends_on=kind)
    at = (*path, "deployment")
    if provider.deployment is None:
        yield Finding(at, f"provider_type {MANAGED} needs the id of a deployment", depends_on=kind)
    elif deployments is not None and provider.deployment not in deployments:
        known = tuple(sorted(deployments))
        reason = f"there is no deployment {quoted(provider.deployment)} in proxy.model_host.deployments"
        yield Finding(at, reason, nearest(provider.deployment, known), known, depends_on=kind)


def _plain(provider: ProviderConfig, path: KeyPath) -> Iterator[Finding]:
    kind = provider_type(provider)
    name, written = (*path, "name"), (*path, "provider_type")
    if provider.deployment is not None:
        reason = f"only a provider of provider_type {MANAGED} has a deployment"
        yield Finding((*path, "deployment"), reason, depends_on=(written,))
    elif kind in OTHER_PROTOCOLS:
        at = written if provider.provider_type else name
        reason = f"the protocol of {kind} {NOT_YET}; only OpenAI-compatible providers are"
        yield Finding(at, reason, depends_on=(written,))
    elif kind is not None and kind not in BASE_URLS:
        known = (MANAGED, *BASE_URLS)
        yield Finding(written, f"{quoted(kind)} is not a known provider", nearest(kind, known), known)
    elif provider.base_url is None and kind is None:
        known = tuple(BASE_URLS)
        reason = f"{quoted(provider.name)} is not a known provider, so it needs a base_url or a provider_type"
        yield Finding((*path, "base_url"), reason, nearest(provider.name, known), depends_on=(name, written))
    yield from _base_url(provider, path)
    if provider.api_key is not None and not _is_header_text(provider.api_key.get_secret_value()):
        yield Finding((*path, "api_key"), "must be printable ASCII without spaces", depends_on=(written,))


def _base_url(provider: ProviderConfig, path: KeyPath) -> Iterator[Finding]:
    url, kind, private = provider.base_url, (*path, "provider_type"), (*path, "allow_private_base_url")
    if url is None:
        return
    reason = base_url_reason(url, allow_private=True)
    if reason is not None:
        yield Finding((*path, "base_url"), reason, depends_on=(kind,))
    elif not provider.allow_private_base_url and (inside := base_url_reason(url, allow_private=False)):
        yield Finding((*path, "base_url"), inside, depends_on=(kind, private))


def _is_header_text(key: str) -> bool:
    """Whether a key can stand in an Authorization header. What only refers to a key is judged once it is resolved."""
    return may_be_shown(key) or (key.isascii() and key.isprintable() and " " not in key)


def _default_model(provider: ProviderConfig, path: KeyPath) -> Iterator[Finding]:
    names = public_models(provider)
    wanted = provider.default_model
    if wanted is not None and names and wanted not in names:
        # Without models the deployment of a managed provider is its one name.
        read = ("models",) if provider.models else ("models", "provider_type", "deployment", "serve")
        reason = f"{quoted(wanted)} is not in models"
        depends = tuple((*path, key) for key in read)
        yield Finding((*path, "default_model"), reason, nearest(wanted, names), names, depends_on=depends)
