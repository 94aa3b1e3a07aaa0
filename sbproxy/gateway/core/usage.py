"""Reads token counts from answers, and estimates them where an answer has none.

An estimate is never zero: an answer that counted as nothing would be free of every budget (field report WOR-1146).
"""

from __future__ import annotations

from typing import Any

_BYTES_PER_TOKEN = 4
"""English text and JSON around it come to about four bytes a token in the vocabularies that are common today."""


Usage = tuple[int | None, int | None]
"""Tokens in and out of one answer. Not a class of its own: it is made for every answer and taken apart at once."""


def read_usage(usage: object) -> Usage | None:
    """The counts of an OpenAI ``usage`` object; None when it is no such object or holds no count."""
    if type(usage) is not dict:
        return None
    tokens_in = _count(usage.get("prompt_tokens"))
    tokens_out = _count(usage.get("completion_tokens"))
    if tokens_in is None and tokens_out is None:
        return None
    return tokens_in, 0 if tokens_out is None else tokens_out


def estimate_tokens(size_bytes: int) -> int:
    """A rough count for a text of that many bytes; at least 1."""
    return max(1, size_bytes // _BYTES_PER_TOKEN)


def answer_size(document: dict[str, Any]) -> int:
    """Bytes of the text that a unary answer's choices hold; 0 for embeddings."""
    choices = document.get("choices")
    if not isinstance(choices, list):
        return 0
    size = 0
    for choice in choices:
        if isinstance(choice, dict):
            message = choice.get("message")
            text = message.get("content") if isinstance(message, dict) else choice.get("text")
            size += len(text.encode("utf-8", "replace")) if isinstance(text, str) else 0
    return size


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else None
