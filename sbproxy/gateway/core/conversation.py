"""Decides what the messages of a chat become, so that every chat template reads the same conversation.

One system text in front, roles that templates know, turns that alternate, calls that are whole. What is inside a
message is decided in ``content`` and ``tool_calls``.
"""

from __future__ import annotations

from typing import Any

from sbproxy.errors.gateway import InvalidRequest, UnsupportedContent
from sbproxy.gateway.core.content import text_content, user_content
from sbproxy.gateway.core.tool_calls import ToolCalls

_PLAIN = ("user", "assistant")
_INSTRUCTIONS = ("system", "developer")
_ANSWERS = ("tool", "function")
_ROLES = "system, developer, user, assistant or tool"
_TEXTS = ("name", "reasoning_content", "reasoning", "tool_call_id", "refusal")
_CALLS = ("tool_calls", "function_call")
_BETWEEN = "\n\n"


def normalise_messages(messages: list[dict[str, Any]], model: str, *, images: bool) -> list[dict[str, Any]]:
    """The messages to send; the same list when there is nothing to do.

    Takes what ``read_inference`` has let through. Raises InvalidRequest, RemoteContentRefused, UnsupportedContent.
    """
    before = ""
    for message in messages:
        role = message["role"]
        if (
            len(message) != 2
            or type(message.get("content")) is not str
            or role == before
            or not (role in _PLAIN or (role == "system" and not before))
        ):
            break
        before = role
    else:
        return messages
    rewritten = _rewritten(messages, model, images)
    return messages if rewritten == messages else rewritten


def _rewritten(messages: list[dict[str, Any]], model: str, images: bool) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    instructions: list[str] = []
    calls = ToolCalls()
    for at, given in enumerate(messages):
        path = f"messages[{at}]"
        role = given["role"]
        message = _without_nulls(given, path)
        if role in _INSTRUCTIONS:
            instructions.append(text_content(message.get("content"), f"{path}.content", role))
        elif role == "assistant":
            _add(turns, _assistant(message, path, model, calls))
        elif role in _ANSWERS:
            turns.append(_answer(message, path, calls))
        elif role == "user":
            calls.settled()
            content = user_content(message.get("content"), f"{path}.content", model, images=images)
            _add(turns, {**message, "content": content})
        else:
            raise InvalidRequest(f"must be {_ROLES}", f"{path}.role")
    calls.settled()
    if instructions:
        turns.insert(0, {"role": "system", "content": _BETWEEN.join(filter(None, instructions))})
    return turns


def _without_nulls(message: dict[str, Any], path: str) -> dict[str, Any]:
    """A null is an absent field to the API and a parse error to some engines."""
    for name in _TEXTS:
        value = message.get(name)
        if value is not None and type(value) is not str:
            raise InvalidRequest("must be a string", f"{path}.{name}")
    if message["role"] != "assistant":
        for name in _CALLS:
            if message.get(name) is not None:
                raise InvalidRequest("is only allowed in an assistant message", f"{path}.{name}")
    return {name: value for name, value in message.items() if value is not None}


def _assistant(message: dict[str, Any], path: str, model: str, calls: ToolCalls) -> dict[str, Any]:
    """Without a content it said nothing: that is how engines' own answers come back, with calls or without."""
    if "audio" in message:
        raise UnsupportedContent(model, "audio", f"{path}.audio")
    made = calls.made(message, path)
    content = message.get("content") or ""
    turn = {name: value for name, value in message.items() if name not in _CALLS}
    turn["content"] = text_content(content, f"{path}.content", "assistant")
    if made:
        turn["tool_calls"] = made
    return turn


def _answer(message: dict[str, Any], path: str, calls: ToolCalls) -> dict[str, Any]:
    call_id = calls.answered(message, path)
    content = text_content(message.get("content"), f"{path}.content", "tool")
    return {**message, "role": "tool", "tool_call_id": call_id, "content": content}


def _add(turns: list[dict[str, Any]], turn: dict[str, Any]) -> None:
    """Some templates refuse two turns of one role in a row, so plain texts of the same speaker become one."""
    last = turns[-1] if turns else None
    if last is not None and last["role"] == turn["role"] and _is_text(last) and _is_text(turn):
        last["content"] = _BETWEEN.join(filter(None, (last["content"], turn["content"])))
    else:
        turns.append(turn)


def _is_text(turn: dict[str, Any]) -> bool:
    return len(turn) == 2 and type(turn["content"]) is str
