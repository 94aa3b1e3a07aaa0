"""``origins``: host to ``ai_proxy`` action and its providers (contracts sections 4 and 5)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sbproxy.config.core.fields import Block, Identifier, Name, Secret, ShortName
from sbproxy.config.core.key_management import StaticCredential
from sbproxy.config.core.model_host import ReferencePrice
from sbproxy.config.core.serve import ServeConfig


class ProviderConfig(Block):
    """One provider of an `ai_proxy`: a managed deployment or a plain OpenAI-compatible endpoint."""

    name: ShortName
    """Name of the provider, unique in its origin; also its type when `provider_type` is unset."""
    provider_type: Annotated[str, Field(min_length=1)] | None = None
    """`managed_model` for a deployment of this daemon, else the id of a known provider."""
    deployment: Identifier | None = None
    """Deployment id; required with `managed_model`, refused otherwise."""
    api_key: Secret | None = None
    """Secret: a literal, `${VAR}`, `env:NAME` or `file:/absolute/path`. Refused with `managed_model`."""
    base_url: str | None = None
    """http(s) URL up to and including the version, for example `https://host/v1`; known providers have a default."""
    allow_private_base_url: bool = False
    """Allow a `base_url` that points at a loopback or private address."""
    models: list[Name] = []
    """Public model names; empty means any, or the deployment id with `managed_model`."""
    default_model: Name | None = None
    """Model for requests that name none; one of `models` when that is not empty."""
    model_map: dict[str, Name] = {}
    """Public model name to the name that the provider knows."""
    timeout_ms: Annotated[int, Field(ge=1)] | None = None
    """How long an answer may take, stream included, in milliseconds."""
    enabled: bool = True
    """A disabled provider gets no request."""
    priority: int | None = None
    """Lower comes first."""
    reference: ReferencePrice | None = None
    """Hosted price of this provider's models, for the value report."""
    serve: ServeConfig | None = None
    """Compatibility form of local models; write `proxy.model_host.deployments` and `managed_model` instead."""

    @property
    def managed(self) -> bool:
        return self.provider_type == "managed_model"


class AiProxyAction(Block):
    """`action: {type: ai_proxy}`: an OpenAI-compatible front for the providers."""

    type: Literal["ai_proxy"]
    """`ai_proxy` is the only action of this version."""
    providers: Annotated[list[ProviderConfig], Field(min_length=1)]
    """Where requests go; the first one that offers the model answers."""
    allowed_models: list[Name] = []
    """Model names that may be used; empty means all."""
    blocked_models: list[Name] = []
    """Model names that may not be used; wins over `allowed_models`."""
    max_body_size: Annotated[int, Field(ge=1, le=1 << 30)] = 64 << 20
    """Largest request body in bytes."""
    require_governed_key: bool = False
    """Refuse requests without a virtual key."""


class OriginConfig(Block):
    """One origin; the map's key is its host name, `*.suffix` or an IP literal without port."""

    action: AiProxyAction
    """What is served at this host."""
    credentials: list[StaticCredential] = []
    """Static keys of this origin."""
    extensions: dict[str, Any] = {}
    """Opaque: kept and printed, never read by the daemon."""
