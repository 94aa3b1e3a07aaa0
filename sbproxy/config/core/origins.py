"""``origins``: host to ``ai_proxy`` action and its providers (contracts sections 4 and 5)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sbproxy.config.core.fields import Block, Identifier, Secret


class ProviderConfig(Block):
    """One provider of an ``ai_proxy``: a managed deployment or a plain OpenAI-compatible endpoint."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    provider_type: Annotated[str, Field(min_length=1)] | None = None
    deployment: Identifier | None = None
    api_key: Secret | None = None
    base_url: str | None = None
    allow_private_base_url: bool = False
    models: list[str] = []
    default_model: str | None = None
    model_map: dict[str, str] = {}
    timeout_ms: Annotated[int, Field(ge=1)] | None = None
    enabled: bool = True
    priority: int | None = None

    @property
    def managed(self) -> bool:
        return self.provider_type == "managed_model"


class AiProxyAction(Block):
    """``action: {type: ai_proxy}``. Other action types are refused by name at load."""

    type: Literal["ai_proxy"]
    providers: Annotated[list[ProviderConfig], Field(min_length=1)]
    allowed_models: list[str] = []
    blocked_models: list[str] = []
    max_body_size: Annotated[int, Field(ge=1, le=1 << 30)] = 64 << 20


class OriginConfig(Block):
    """One origin; the map's key is its host name, ``*.suffix`` or an IP literal without port."""

    action: AiProxyAction
