"""Canonical JSON (RFC 8785) for the values that an identity is made of: text, whole numbers, lists and objects."""

from __future__ import annotations

import json
from typing import TypeAlias

from sbproxy.config.core.scalars import LARGEST_INTEGER

CanonicalValue: TypeAlias = "str | int | bool | list[CanonicalValue] | dict[str, CanonicalValue] | None"

# Of text both name the same one spelling: the short escapes, \u00xx in lower case, and everything else as it is.
_text = json.JSONEncoder(ensure_ascii=False).encode


def canonical_json(value: CanonicalValue) -> bytes:
    """The one encoding of ``value``. Raises ValueError for what has none: large integers, lone surrogates."""
    return _encoded(value).encode("utf-8")


def _encoded(value: CanonicalValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if abs(value) > LARGEST_INTEGER:
            raise ValueError(f"{value} is beyond ±{LARGEST_INTEGER}")
        return str(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{','.join(map(_encoded, value))}]"
    # RFC 8785 orders names by their UTF-16 code units, which differs from code points beyond the first plane.
    names = sorted(value, key=lambda name: name.encode("utf-16-be"))
    return f"{{{','.join(f'{_encoded(name)}:{_encoded(value[name])}' for name in names)}}}"
