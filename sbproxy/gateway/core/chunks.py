"""Decides what the client sees of each streamed event: the public model name, and usage only when it was asked for.

Takes whole events from ``sse``; the relay sends what comes out.
"""

from __future__ import annotations

from typing import Any

import orjson

from sbproxy.gateway.core.usage import Usage, read_usage

DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"
_NULL_USAGE = b',"usage":null'
"""Some upstreams put this into every chunk once usage is asked for."""


class ChunkRewriter:
    """One streamed answer. ``done`` after the final event; ``failure`` holds the document of an error event.

    ``delivered`` counts the events that carried choices to the client.
    """

    __slots__ = ("_keep_usage", "_needle", "_public", "_public_field", "delivered", "done", "failure", "usage")

    def __init__(self, public: str, *, keep_usage: bool) -> None:
        self._public = public
        self._public_field = b'"model":' + orjson.dumps(public)
        self._needle: bytes | None = None
        self._keep_usage = keep_usage
        self.delivered = 0
        self.done = False
        self.failure: dict[str, Any] | None = None
        self.usage: Usage | None = None

    def rewrite(self, event: bytes) -> bytes:
        """The framed event for the client; empty when it gets none."""
        needle = self._needle
        # ``find`` and not ``in``: for bytes the operator first fails to take its left side for a number, which costs
        # more than all the rest of this method together.
        find = event.find
        if not self._keep_usage and find(_NULL_USAGE) >= 0:
            event = event.replace(_NULL_USAGE, b"")
            find = event.find
        # Inside a JSON string every quote is escaped, so these byte patterns can only be keys and values of the
        # document itself, never text of the model: replacing them is safe and fifteen times cheaper than parsing.
        if (
            needle is not None
            and find(needle) >= 0
            and find(b'"usage"') < 0
            and find(b'"error"') < 0
            and find(b"\n") < 0
            and event.startswith(b"data: {")
        ):
            self.delivered += 1
            return event.replace(needle, self._public_field) + b"\n\n"
        return self._rewrite_slowly(event)

    def _rewrite_slowly(self, event: bytes) -> bytes:
        payload = data_of(event)
        if payload is None:
            # A comment keeps the connection alive; its words are the upstream's own, so ours stand in for them.
            # Before the first real event it would commit the answer, and a failure could not be told any more.
            return _KEEP_ALIVE if self.delivered else b""
        if payload == b"[DONE]":
            self.done = True
            return DONE
        try:
            document = orjson.loads(payload)
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict):
            self.failure = {}
            return b""
        if document.get("error") is not None:
            self.failure = document
            return b""
        if "usage" in document and not self._take_usage(document):
            return b""
        self._learn(payload, document)
        if "model" in document:
            document["model"] = self._public
        document.pop("__verbose", None)
        self.delivered += bool(document.get("choices"))
        try:
            return b"data: " + orjson.dumps(document) + b"\n\n"
        except TypeError:  # nested more deeply than orjson writes: no event of this API
            self.failure = {}
            return b""

    def _take_usage(self, document: dict[str, Any]) -> bool:
        """Note the counts; False when the event existed only to bring usage that the client did not ask for."""
        usage = read_usage(document["usage"])
        if usage is not None:
            self.usage = usage
        if self._keep_usage:
            return True
        del document["usage"]
        return usage is None or document.get("choices") != []

    def _learn(self, payload: bytes, document: dict[str, Any]) -> None:
        """The bytes in which this upstream spells its model; the next events can be searched for them."""
        model = document.get("model")
        if self._needle is None and isinstance(model, str):
            name = orjson.dumps(model)
            for needle in (b'"model":' + name, b'"model": ' + name):
                if needle in payload:
                    self._needle = needle


def data_of(event: bytes) -> bytes | None:
    """The data lines of an event joined by LF; None when it has none (a comment, or only an id)."""
    lines = [
        line.removeprefix(b"data:").removeprefix(b" ")
        for line in event.split(b"\n")
        if line.startswith(b"data:") or line == b"data"
    ]
    return b"\n".join(lines) if lines else None
