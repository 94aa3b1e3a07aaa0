"""Decides where a provider's requests go and with which fixed headers: the part of a route that is the same every time.

A managed provider has no address here; its permit brings the engine's. What a configuration may say is refused in
``sbproxy.config.core.origin_rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sbproxy.config.core.origins import ProviderConfig
from sbproxy.config.core.provider_catalog import base_url
from sbproxy.errors.gateway import UnusableProvider
from sbproxy.gateway.core.normalise import EngineLimits
from sbproxy.gateway.core.surfaces import INFERENCE, Surface
from sbproxy.gateway.exchange import HeaderPairs, Upstream

_BY_MODALITY: dict[str, frozenset[Surface]] = {
    "chat": frozenset({"chat_completions", "completions"}),
    "embedding": frozenset({"embeddings"}),
}
JSON_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
    # Answers are read and rewritten on the way, so they must come as they are.
    (b"accept-encoding", b"identity"),
    (b"user-agent", b"sbproxy"),
)


@dataclass(frozen=True, slots=True)
class ManagedProvider:
    """A deployment of this daemon. ``surfaces`` is what its model can do; tokens of context, where they are known."""

    name: str
    deployment: str
    surfaces: frozenset[Surface]
    context_window: int | None = None
    limits: EngineLimits = field(default_factory=EngineLimits)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the catalog and the configuration say of a deployment's model; the context is that of one request.

    ``slots`` is how many answers its engine gives at once.
    """

    modality: str
    context_window: int | None = None
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class HostedProvider:
    """A plain OpenAI-compatible endpoint. ``timeout_s`` is None when the configuration names none."""

    name: str
    upstream: Upstream
    prefix: str
    headers: HeaderPairs = field(repr=False)
    model_map: Mapping[str, str]
    timeout_s: float | None
    surfaces: frozenset[Surface] = INFERENCE
    secret: str | None = field(default=None, repr=False)
    """What must never come back to a caller, however a provider words its refusals."""


Provider = ManagedProvider | HostedProvider


def compile_provider(origin: str, config: ProviderConfig, known: Mapping[str, ModelFacts]) -> Provider:
    """Raises UnusableProvider. A deployment of unknown modality may be asked anything; its engine will tell."""
    if config.managed:
        if config.deployment is None:
            raise UnusableProvider(origin, config.name, "provider_type managed_model needs a deployment")
        facts = known.get(config.deployment)
        if facts is None:
            return ManagedProvider(config.name, config.deployment, INFERENCE)
        surfaces = _BY_MODALITY.get(facts.modality, frozenset())
        limits = EngineLimits(facts.slots, facts.context_window)
        return ManagedProvider(config.name, config.deployment, surfaces, facts.context_window, limits)
    upstream, prefix = _address(origin, config)
    return HostedProvider(
        config.name,
        upstream,
        prefix,
        (*JSON_HEADERS, *_authorization(origin, config)),
        dict(config.model_map),
        config.timeout_ms / 1000 if config.timeout_ms is not None else None,
        secret=config.api_key.get_secret_value() if config.api_key is not None else None,
    )


def _address(origin: str, config: ProviderConfig) -> tuple[Upstream, str]:
    """Host and path prefix. A base_url without a path means ``/v1``, where such an API lives."""
    url = base_url(config)
    if url is None:
        raise UnusableProvider(origin, config.name, "it has no base_url and is not a provider that is known by name")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UnusableProvider(origin, config.name, "base_url is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UnusableProvider(origin, config.name, "base_url must be an http or https URL with a host")
    tls = parts.scheme == "https"
    # A known provider's own address, such as a local engine's, is ours and not the file's.
    public_only = config.base_url is not None and not config.allow_private_base_url
    upstream = Upstream(parts.hostname, port if port is not None else (443 if tls else 80), tls, public_only)
    return upstream, parts.path or "/v1"


def _authorization(origin: str, config: ProviderConfig) -> HeaderPairs:
    if config.api_key is None:
        return ()
    key = config.api_key.get_secret_value()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UnusableProvider(origin, config.name, "api_key must be printable ASCII without spaces")
    return ((b"authorization", b"Bearer " + key.encode()),)
