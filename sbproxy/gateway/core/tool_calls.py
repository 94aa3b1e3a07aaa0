"""Decides what the tool calls of a conversation's past become: whole calls with ids, each answered once, in its turn.

Templates parse a call's arguments and count its answers, each in a way of its own; what leaves here suits them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import orjson

from sbproxy.errors.gateway import InvalidRequest

UNPARSED = "unparsed_arguments"
"""The name under which arguments that are no JSON object stay readable: they are what the model once wrote."""


@dataclass(slots=True)
class _Open:
    """A call without its answer. ``made``: the id is ours, because the caller gave none."""

    id: str
    name: str
    path: str
    made: bool


class ToolCalls:
    """Reads calls and their answers in the order of the messages. Every method raises InvalidRequest."""

    def __init__(self) -> None:
        self._numbers = count()
        self._open: list[_Open] = []

    def made(self, message: dict[str, Any], path: str) -> list[dict[str, Any]]:
        """The calls of an assistant message, from ``tool_calls`` or the older ``function_call``; none is an empty list.

        Raises also for calls of an earlier message that nothing has answered.
        """
        self.settled()
        calls, legacy = message.get("tool_calls"), message.get("function_call")
        if legacy is not None:
            if calls:
                raise InvalidRequest("is not allowed beside tool_calls", f"{path}.function_call")
            return [self._call({"function": legacy}, f"{path}.function_call", f"{path}.function_call")]
        if calls is None:
            return []
        if type(calls) is not list:
            raise InvalidRequest("must be a list of tool calls", f"{path}.tool_calls")
        return [self._read(call, f"{path}.tool_calls[{at}]") for at, call in enumerate(calls)]

    def answered(self, message: dict[str, Any], path: str) -> str:
        """The id of the call that a ``tool`` or older ``function`` message answers."""
        if not self._open:
            raise InvalidRequest("a tool's answer must follow an assistant message with tool calls", f"{path}.role")
        chosen = self._by_name(message, path) if message["role"] == "function" else self._by_id(message, path)
        self._open.remove(chosen)
        return chosen.id

    def settled(self) -> None:
        """Refuse the conversation to go on while a call has no answer."""
        if self._open:
            raise InvalidRequest("no tool message answers this call", self._open[0].path)

    def _by_id(self, message: dict[str, Any], path: str) -> _Open:
        given = message.get("tool_call_id")
        if given is None or given == "":
            return self._open[0]
        if type(given) is not str:
            raise InvalidRequest("must be a string", f"{path}.tool_call_id")
        for each in self._open:
            if each.id == given:
                return each
        for each in self._open:
            if each.made:
                return each
        raise InvalidRequest(
            "names no call of the assistant message before that waits for an answer", f"{path}.tool_call_id"
        )

    def _by_name(self, message: dict[str, Any], path: str) -> _Open:
        name = message.get("name")
        for each in self._open:
            if each.name == name:
                return each
        raise InvalidRequest("names no function that the assistant message before has called", f"{path}.name")

    def _read(self, call: Any, path: str) -> dict[str, Any]:
        if type(call) is not dict:
            raise InvalidRequest("must be an object", path)
        if call.get("type") not in (None, "function"):
            raise InvalidRequest("must be function", f"{path}.type")
        return self._call(call, path, f"{path}.function")

    def _call(self, call: dict[str, Any], path: str, inner: str) -> dict[str, Any]:
        function = call.get("function")
        if type(function) is not dict:
            raise InvalidRequest("must be an object with a name and arguments", inner)
        name = function.get("name")
        if type(name) is not str or not name:
            raise InvalidRequest("must be a string that is not empty", f"{inner}.name")
        given = call.get("id")
        if given is not None and type(given) is not str:
            raise InvalidRequest("must be a string", f"{path}.id")
        arguments = _arguments(function.get("arguments"), f"{inner}.arguments")
        call_id = given or self._fresh()
        self._open.append(_Open(call_id, name, path, made=not given))
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _fresh(self) -> str:
        """Nine letters and digits, which is what the strictest templates ask of an id; the same at every turn."""
        taken = {each.id for each in self._open}
        return next(made for number in self._numbers if (made := f"call{number:05d}") not in taken)


def _arguments(given: Any, path: str) -> str:
    """The text of a JSON object, for every text and object."""
    if given is None or given == "":
        return "{}"
    if type(given) is dict:
        return _written(given, path)
    if type(given) is not str:
        raise InvalidRequest("must be the text of a JSON object", path)
    try:
        parsed = orjson.loads(given)
    except orjson.JSONDecodeError:
        return _written({UNPARSED: given}, path)
    if type(parsed) is not dict:
        return "{}" if parsed is None else _written({UNPARSED: given}, path)
    _written(parsed, path)
    return given


def _written(arguments: dict[str, Any], path: str) -> str:
    try:
        return orjson.dumps(arguments).decode()
    except TypeError:
        raise InvalidRequest("is nested too deeply", path) from None
