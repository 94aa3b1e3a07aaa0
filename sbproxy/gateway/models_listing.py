"""Answers ``GET /v1/models`` and one model's page from the routes and the model host; no provider is ever asked.

Contracts section 30. Nothing here names a node, a port or an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from sbproxy.errors.gateway import ModelNotFound
from sbproxy.gateway.core.providers import ManagedProvider, Provider
from sbproxy.gateway.core.routes import OriginRoutes
from sbproxy.gateway.core.surfaces import shown
from sbproxy.gateway.ports import ManagedModels

_ALWAYS = {"state": "ready", "ready_replicas": 1, "desired_replicas": 1}
"""Of an ordinary provider: whether it answers is known only by asking."""


def models_page(origin: OriginRoutes, managed: ManagedModels, allows: Callable[[str], bool] | None = None) -> bytes:
    """The whole list, in the order of the configuration; ``allows`` is the caller's key."""
    rows = [
        _row(model, provider, managed) for model, provider in origin.named.items() if allows is None or allows(model)
    ]
    return orjson.dumps({"object": "list", "data": rows})


def model_page(
    origin: OriginRoutes, model: str, managed: ManagedModels, allows: Callable[[str], bool] | None = None
) -> bytes:
    """One model. Raises ModelNotFound; a name that an open provider would take is a model too."""
    provider = origin.provider_for(model)
    if provider is None or (allows is not None and not allows(model)):
        raise ModelNotFound(shown(model), origin.near(model))
    return orjson.dumps(_row(model, provider, managed))


def _row(model: str, provider: Provider, managed: ManagedModels) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": model,
        "object": "model",
        "created": 0,
        "owned_by": "sbproxy",
        "availability": _availability(provider, managed),
        "capabilities": sorted(provider.surfaces),
    }
    if isinstance(provider, ManagedProvider) and provider.context_window is not None:
        row["context_window"] = provider.context_window
    return row


def _availability(provider: Provider, managed: ManagedModels) -> dict[str, Any]:
    if not isinstance(provider, ManagedProvider):
        return _ALWAYS
    seen = managed.availability(provider.deployment)
    return {"state": seen.state, "ready_replicas": seen.ready_replicas, "desired_replicas": seen.desired_replicas}
