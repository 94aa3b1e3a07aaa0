"""Decides what a request to an engine of ours becomes, so that the same odd request behaves alike on every engine.

docs/gateway.md lists each repair and refusal. Shapes without which nothing can be routed are ``request_body``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sbproxy.errors.gateway import InvalidRequest
from sbproxy.gateway.core.conversation import normalise_messages
from sbproxy.gateway.core.parameters import PARAMETERS, check_parameters
from sbproxy.gateway.core.surfaces import Surface
from sbproxy.gateway.core.tools import normalise_tools

_MOST_TOKENS = (1 << 31) - 1
_MOST_INPUTS = 2048


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine can do for one request. None: not known, so the engine itself will tell.

    ``slots`` answers at once, ``context_tokens`` of prompt and answer together, ``images`` among the messages.
    """

    slots: int | None = None
    context_tokens: int | None = None
    images: bool = False


def normalise(surface: Surface, document: dict[str, Any], model: str, limits: EngineLimits) -> dict[str, Any]:
    """The document to send, the same object when nothing is to do; the given one is never changed.

    Takes what ``read_inference`` has let through for one of the surfaces of INFERENCE; ``model`` is the public name.
    Raises InvalidRequest, UnsupportedContent and RemoteContentRefused, each with the path of the field at fault.
    """
    if surface == "chat_completions":
        return normalise_chat(document, model, limits)
    if surface == "completions":
        return normalise_completion(document, limits)
    return normalise_embeddings(document)


def normalise_chat(document: dict[str, Any], model: str, limits: EngineLimits) -> dict[str, Any]:
    """``normalise`` for chat completions."""
    repaired = check_parameters(document, PARAMETERS["chat_completions"])
    repaired = _bounded(repaired, limits)
    repaired = normalise_tools(repaired)
    messages = repaired["messages"]
    sent = normalise_messages(messages, model, images=limits.images)
    return repaired if sent is messages else {**repaired, "messages": sent}


def normalise_completion(document: dict[str, Any], limits: EngineLimits) -> dict[str, Any]:
    """``normalise`` for completions."""
    repaired = check_parameters(document, PARAMETERS["completions"])
    _check_texts(repaired["prompt"], "prompt")
    if "max_completion_tokens" in repaired:
        raise InvalidRequest("is a parameter of chat completions; send max_tokens", "max_completion_tokens")
    return _bounded(repaired, limits)


def normalise_embeddings(document: dict[str, Any]) -> dict[str, Any]:
    """``normalise`` for embeddings."""
    repaired = check_parameters(document, PARAMETERS["embeddings"])
    given = repaired["input"]
    _check_texts(given, "input")
    if type(given) is list and "" in given:
        raise InvalidRequest("must not be empty", f"input[{given.index('')}]")
    return repaired


def _bounded(document: dict[str, Any], limits: EngineLimits) -> dict[str, Any]:
    """``max_tokens`` under the name that every engine knows, and left out where the context is the bound anyway."""
    count = document.get("n", 1)
    if limits.slots is not None and count > limits.slots:
        raise InvalidRequest(f"must be at most {limits.slots}: this model gives no more answers at once", "n")
    old: Any = document.get("max_tokens")
    new: Any = document.get("max_completion_tokens")
    if old is None and new is None:
        return document
    for value, param in ((old, "max_tokens"), (new, "max_completion_tokens")):
        if value is not None and (type(value) is not int or not 1 <= value <= _MOST_TOKENS):
            raise InvalidRequest(f"must be a whole number from 1 to {_MOST_TOKENS}", param)
    most: int = new if old is None else old
    if new is not None and new != most:
        raise InvalidRequest("is not allowed beside another max_completion_tokens", "max_tokens")
    if limits.context_tokens is not None and most >= limits.context_tokens:
        return {name: value for name, value in document.items() if name not in ("max_tokens", "max_completion_tokens")}
    if new is None:
        return document
    repaired = {name: value for name, value in document.items() if name != "max_completion_tokens"}
    repaired["max_tokens"] = most
    return repaired


def _check_texts(value: Any, param: str) -> None:
    """A text, a list of texts, a list of tokens or a list of such lists; it is known not to be empty."""
    if type(value) is str:
        return
    kind = type(value[0])
    if kind not in (str, int, list):
        raise InvalidRequest("must be a text or a list of tokens", f"{param}[0]")
    if kind is not int and len(value) > _MOST_INPUTS:
        raise InvalidRequest(f"must hold at most {_MOST_INPUTS} entries", param)
    for at, each in enumerate(value):
        if type(each) is not kind:
            raise InvalidRequest("must be of the same kind as the entry before", f"{param}[{at}]")
        if kind is int:
            _check_token(each, f"{param}[{at}]")
        elif kind is list:
            if not each:
                raise InvalidRequest("must hold at least one token", f"{param}[{at}]")
            for within, token in enumerate(each):
                _check_token(token, f"{param}[{at}][{within}]")


def _check_token(token: Any, path: str) -> None:
    if type(token) is not int or not 0 <= token <= _MOST_TOKENS:
        raise InvalidRequest("must be the number of a token", path)
