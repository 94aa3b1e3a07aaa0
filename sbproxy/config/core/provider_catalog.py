"""Providers known by name: those that speak the OpenAI protocol, with their base URL, and those that do not."""

from __future__ import annotations

from typing import Final

from sbproxy.config.core.origins import ProviderConfig

BASE_URLS: Final[dict[str, str]] = {
    "openai": "https://api.openai.com/v1",
    "mistral": "https://api.mistral.ai/v1",
    "groq": "https://api.groq.com/openai/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "fireworks": "https://api.fireworks.ai/inference/v1",
    "cerebras": "https://api.cerebras.ai/v1",
    "xai": "https://api.x.ai/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "ollama": "http://127.0.0.1:11434/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "sglang": "http://127.0.0.1:30000/v1",
    "vllm": "http://127.0.0.1:8000/v1",
}

OTHER_PROTOCOLS: Final = frozenset(["anthropic", "google", "gemini", "vertex", "azure", "bedrock", "cohere"])
"""Provider types of the documents that need a translation which this version does not have."""

MANAGED: Final = "managed_model"


def provider_type(provider: ProviderConfig) -> str | None:
    """The written type, else the name when it is that of a known provider, else None: plain OpenAI-compatible."""
    if provider.provider_type is not None:
        return provider.provider_type
    return provider.name if provider.name in BASE_URLS or provider.name in OTHER_PROTOCOLS else None


def base_url(provider: ProviderConfig) -> str | None:
    """Where the provider is, without a trailing slash; None for a managed one or when nothing says it."""
    if provider.managed:
        return None
    written = provider.base_url or BASE_URLS.get(provider_type(provider) or "")
    return written.rstrip("/") if written else None
