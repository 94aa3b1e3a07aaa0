"""Which type a plain scalar has: the core schema of YAML 1.2, and no more.

So ``yes``, ``on``, ``1:30``, ``2024-01-01`` and ``1_000`` are text; ``true``, ``12``, ``0x1f`` and ``1e3`` are not.
"""

from __future__ import annotations

import math
import re

from sbproxy.config.core.tree import ScalarValue

LARGEST_INTEGER = (1 << 53) - 1
"""The largest integer that JSON readers agree on (contracts section 14)."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)


def typed(text: str) -> ScalarValue:
    """The value of a plain scalar. Raises ValueError when it is a number that is out of range or not finite."""
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if math.isinf(number):
            raise ValueError("the number is out of range")
        return number
    if text.lower().lstrip("+-") in (".inf", ".nan"):
        raise ValueError("infinite numbers and NaN are not accepted")
    return text


def _integer(text: str) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    if len(text) > 40 or abs(number := int(text[2:] if base != 10 else text, base)) > LARGEST_INTEGER:
        raise ValueError(f"whole numbers beyond ±{LARGEST_INTEGER} are not accepted")
    return number
