"""Asking the normaliser, and the messages and tools that its tests are made of."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sbproxy.errors.gateway import InvalidRequest
from sbproxy.gateway.core.normalise import EngineLimits, normalise, normalise_chat
from sbproxy.gateway.core.surfaces import Surface

LIMITS = EngineLimits(slots=2, context_tokens=4096)
HELLO = {"role": "user", "content": "Hello?"}


def said(*messages: dict[str, Any], images: bool = False) -> list[dict[str, Any]]:
    """The messages that are sent for these."""
    document = {"messages": list(messages)}
    before = copy.deepcopy(document)
    sent: list[dict[str, Any]] = normalise_chat(document, "qwen", EngineLimits(images=images))["messages"]
    assert document == before, "the caller's document was changed"
    return sent


def repaired(body: dict[str, Any], surface: Surface = "chat_completions", limits: EngineLimits = LIMITS) -> Any:
    return normalise(surface, body, "qwen", limits)


def refused(body: dict[str, Any], surface: Surface = "chat_completions", limits: EngineLimits = LIMITS) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        repaired(body, surface, limits)
    return caught.value.param


def parts(*given: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(given)}


def called(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **more}


def call(arguments: Any = "{}", call_id: str | None = "c1", name: str = "f") -> dict[str, Any]:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if call_id is None else {"id": call_id, **made}


def result(call_id: str | None = "c1", content: Any = "42") -> dict[str, Any]:
    made = {"role": "tool", "content": content}
    return made if call_id is None else {"role": "tool", "tool_call_id": call_id, "content": content}


WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}
