"""Decides whether a caller's JSON schema is small enough for an engine to make a grammar of.

The time for a token grows with the square of the alternatives, and an engine that checks them answers nobody meanwhile.
Whether a schema is a good one is the engine's to say.
"""

from __future__ import annotations

from typing import Any

from sbproxy.errors.gateway import InvalidRequest

MOST_CHOICES = 1000
MOST_PROPERTIES = 5000
_CHOICES = ("enum", "anyOf", "oneOf", "allOf")


def check_schema(schema: dict[str, Any], path: str) -> None:
    """Count what the whole schema holds. Raises InvalidRequest with ``path``."""
    choices = properties = 0
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if type(node) is list:
            waiting.extend(node)
        elif type(node) is dict:
            for name, value in node.items():
                kind = type(value)
                if kind is dict:
                    if name == "properties":
                        properties += len(value)
                    waiting.append(value)
                elif kind is list:
                    if name in _CHOICES:
                        choices += len(value)
                    waiting.append(value)
    if choices > MOST_CHOICES:
        raise InvalidRequest(f"must hold at most {MOST_CHOICES} enum values and alternatives in all", path)
    if properties > MOST_PROPERTIES:
        raise InvalidRequest(f"must hold at most {MOST_PROPERTIES} properties in all", path)
