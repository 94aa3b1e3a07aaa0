"""Decides what the client sees of a whole JSON answer: the public model name, and never an engine's own details."""

from __future__ import annotations

import orjson

from sbproxy.gateway.core.usage import Usage, answer_size, estimate_tokens, read_usage

_PRIVATE = "__verbose"
"""llama-server's debug field: its own settings, paths among them."""


def public_answer(body: bytes, public: str, request_bytes: int) -> tuple[bytes, Usage, bool]:
    """Put the public model name into an answer: (body, counts, whether they are estimated).

    ValueError when the body is no JSON object, or an error under a status of success.
    """
    document = orjson.loads(body)
    if type(document) is not dict:
        raise ValueError("not a JSON object")
    if document.get("error") is not None:
        raise ValueError("an error under a status of success")
    if document.get("model", public) != public or _PRIVATE in document:
        document.pop(_PRIVATE, None)
        document["model"] = public
        try:
            body = orjson.dumps(document)
        except TypeError:
            raise ValueError("nested more deeply than an answer is") from None
    usage = read_usage(document.get("usage"))
    if usage is not None:
        return body, usage, False
    size = answer_size(document)
    return body, (estimate_tokens(request_bytes), estimate_tokens(size) if size else 0), True
