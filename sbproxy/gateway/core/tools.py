"""Decides what ``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a chat become.

A choice of one function is said in the words that every engine knows: only that tool, and ``required``.
"""

from __future__ import annotations

import re
from typing import Any

from sbproxy.errors.gateway import InvalidRequest
from sbproxy.gateway.core.schemas import check_schema

_MOST = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WORDS = ("none", "auto", "required")
_LEGACY = {"functions": "tools", "function_call": "tool_choice"}
_FIELDS = frozenset({"tools", "tool_choice", "parallel_tool_calls", *_LEGACY})


def normalise_tools(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its tools in order; the same object when it has none or nothing is to do.

    Raises InvalidRequest. Expects a document without null fields.
    """
    if _FIELDS.isdisjoint(document):
        return document
    for legacy, instead in _LEGACY.items():
        if legacy in document:
            raise InvalidRequest(f"is not supported by managed models; send {instead} instead", legacy)
    parallel = document.get("parallel_tool_calls")
    if parallel is not None and type(parallel) is not bool:
        raise InvalidRequest("must be true or false", "parallel_tool_calls")
    tools = _tools(document.get("tools", []))
    choice, tools = _choice(document.get("tool_choice"), tools)
    repaired = {name: value for name, value in document.items() if name not in _FIELDS}
    if tools:
        repaired["tools"] = tools
        if choice is not None:
            repaired["tool_choice"] = choice
        if parallel is not None:
            repaired["parallel_tool_calls"] = parallel
    return document if repaired == document else repaired


def _tools(tools: Any) -> list[dict[str, Any]]:
    if type(tools) is not list:
        raise InvalidRequest("must be a list of tools", "tools")
    if len(tools) > _MOST:
        raise InvalidRequest(f"must hold at most {_MOST} tools", "tools")
    read: list[dict[str, Any]] = []
    names: set[str] = set()
    for at, tool in enumerate(tools):
        path = f"tools[{at}]"
        if type(tool) is not dict:
            raise InvalidRequest("must be an object", path)
        if tool.get("type") != "function":
            raise InvalidRequest("must be function", f"{path}.type")
        function = tool.get("function")
        if function is not None or "name" not in tool:
            path += ".function"
        else:
            # The flat form of the responses API.
            function = {name: value for name, value in tool.items() if name != "type"}
        made = _function(function, path)
        if made["name"] in names:
            raise InvalidRequest("is the name of an earlier tool too", f"{path}.name")
        names.add(made["name"])
        read.append({"type": "function", "function": made})
    return read


def _function(function: Any, path: str) -> dict[str, Any]:
    if type(function) is not dict:
        raise InvalidRequest("must be an object with a name", path)
    made = {name: value for name, value in function.items() if value is not None}
    name = made.get("name")
    if type(name) is not str or _NAME.fullmatch(name) is None:
        raise InvalidRequest("must be 1 to 64 letters, digits, underscores or hyphens", f"{path}.name")
    if type(made.get("description", "")) is not str:
        raise InvalidRequest("must be a string", f"{path}.description")
    if type(made.get("strict", False)) is not bool:
        raise InvalidRequest("must be true or false", f"{path}.strict")
    made["parameters"] = _parameters(made.get("parameters"), f"{path}.parameters")
    return made


def _parameters(schema: Any, path: str) -> dict[str, Any]:
    """A schema of an object, with the members that templates walk through."""
    if schema is None:
        return {"type": "object", "properties": {}}
    if type(schema) is not dict:
        raise InvalidRequest("must be a JSON schema", path)
    if schema.get("type", "object") != "object":
        raise InvalidRequest("must be a JSON schema of type object", f"{path}.type")
    if type(schema.get("properties", {})) is not dict:
        raise InvalidRequest("must be an object", f"{path}.properties")
    check_schema(schema, path)
    if "type" in schema and "properties" in schema:
        return schema
    return {"type": "object", "properties": {}, **schema}


def _choice(choice: Any, tools: list[dict[str, Any]]) -> tuple[str | None, list[dict[str, Any]]]:
    """The word to send and the tools to send with it."""
    if choice is None:
        return None, tools
    if type(choice) is str:
        if choice not in _WORDS:
            raise InvalidRequest("must be none, auto, required or a function", "tool_choice")
        if choice == "required" and not tools:
            raise InvalidRequest("requires tools", "tool_choice")
        return choice, tools
    if type(choice) is not dict or choice.get("type") != "function":
        raise InvalidRequest("must be none, auto, required or a function", "tool_choice")
    function = choice.get("function", choice)
    name = function.get("name") if type(function) is dict else None
    if type(name) is not str:
        raise InvalidRequest("must be a string", "tool_choice.function.name")
    named = [tool for tool in tools if tool["function"]["name"] == name]
    if not named:
        raise InvalidRequest("names no tool of this request", "tool_choice.function.name")
    return "required", named
