"""Which managed providers stand in the place of a provider with a ``serve:`` block, and where the others move to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from sbproxy.config.core.findings import Finding
from sbproxy.config.core.origins import OriginConfig, ProviderConfig
from sbproxy.config.core.serve_deployment import deployment_id
from sbproxy.config.core.serve_rules import served_names
from sbproxy.config.core.tree import KeyPath, quoted

_LONGEST_NAME: Final = 128


def lowered_origins(
    origins: Mapping[str, OriginConfig],
) -> tuple[dict[str, OriginConfig], dict[KeyPath, KeyPath]]:
    """The origins without serve blocks, and where each provider that does not keep its place went."""
    lowered: dict[str, OriginConfig] = {}
    moved: dict[KeyPath, KeyPath] = {}
    for host, origin in origins.items():
        path: KeyPath = ("origins", host, "action", "providers")
        providers: list[ProviderConfig] = []
        for index, provider in enumerate(origin.action.providers):
            if len(providers) != index:
                moved[(*path, index)] = (*path, len(providers))
            providers.extend(_providers(provider))
        action = origin.action.model_copy(update={"providers": providers})
        lowered[host] = origin.model_copy(update={"action": action})
    return lowered, moved


def _providers(provider: ProviderConfig) -> Iterator[ProviderConfig]:
    """One managed provider for each model of a serve block, in its order; any other provider is itself."""
    if provider.serve is None:
        yield provider
        return
    entries = {entry.public_name: entry for entry in reversed(provider.serve.models)}
    names = served_names(provider.serve)
    for name in names:
        deployment = deployment_id(provider.name, entries[name])
        yield provider.model_copy(
            update={
                "name": provider.name if len(names) == 1 else _joined(provider.name, name, deployment),
                "provider_type": "managed_model",
                "deployment": deployment,
                "models": [name],
                "default_model": name if provider.default_model == name else None,
                "serve": None,
            }
        )


def _joined(provider: str, model: str, deployment: str) -> str:
    """``local/qwen``; the deployment's id ends a name that would be too long for a provider."""
    name = f"{provider}/{model}"
    return name if len(name) <= _LONGEST_NAME else f"{provider[: _LONGEST_NAME - 1 - len(deployment)]}/{deployment}"


def name_clashes(written: Mapping[str, OriginConfig], lowered: Mapping[str, OriginConfig]) -> Iterator[Finding]:
    """Providers that got the name of another one. Equal names in the written document are found by its own rules."""
    for host, origin in lowered.items():
        names = Counter(provider.name for provider in origin.action.providers)
        for index, provider in enumerate(written[host].action.providers):
            if provider.serve is None and names[provider.name] > 1 and "/" in provider.name:
                reason = f"{quoted(provider.name)} is also what a model of a serve block's provider is called"
                yield Finding(("origins", host, "action", "providers", index, "name"), f"{reason}; use another name")
