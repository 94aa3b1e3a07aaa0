"""What a request may use at most, and which tools it offers, as the rules of its key need them."""

from __future__ import annotations

from typing import Any, Final

from sbproxy.gateway.core.providers import ManagedProvider, Provider
from sbproxy.gateway.core.surfaces import Surface
from sbproxy.gateway.core.usage import estimate_tokens

UNKNOWN_ANSWER_TOKENS: Final = 4096
"""Ceiling of an answer whose request names none, from a provider whose context is unknown."""


def ceiling_tokens(surface: Surface, document: dict[str, Any], body_bytes: int, provider: Provider) -> int:
    """Prompt (estimated from the body's size) and the longest answer that was asked for, over all choices."""
    prompt = estimate_tokens(body_bytes)
    if surface == "embeddings":
        return prompt
    wanted = document.get("max_completion_tokens", document.get("max_tokens"))
    if type(wanted) is not int or wanted < 0:
        window = provider.context_window if isinstance(provider, ManagedProvider) else None
        wanted = max(0, window - prompt) if window is not None else UNKNOWN_ANSWER_TOKENS
    choices = document.get("n")
    return prompt + wanted * (choices if type(choices) is int and choices > 0 else 1)


def tool_names(document: dict[str, Any]) -> tuple[str, ...]:
    """Names of the functions that a request offers; what is malformed has none, and is refused elsewhere."""
    tools = document.get("tools")
    if type(tools) is not list:
        return ()
    functions = (tool.get("function") for tool in tools if type(tool) is dict)
    names = (function.get("name") for function in functions if type(function) is dict)
    return tuple(name for name in names if type(name) is str)
