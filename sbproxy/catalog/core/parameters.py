"""How many parameters a model has, read from the text people write: ``135M``, ``0.5B``, ``30B-A3B``, ``8x7B``."""

from __future__ import annotations

import re
from decimal import Decimal

_UNIT = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_PARAMS = re.compile(r"(?:([1-9][0-9]{0,3})x)?([0-9]{1,6}(?:\.[0-9]{1,6})?)([KMBT])(?:-A[0-9.]+[KMBT])?", re.ASCII)


def parameter_count(params: str) -> int:
    """All parameters, also those of experts that one token does not use. Raises ValueError with the reason."""
    match = _PARAMS.fullmatch(params.upper().replace("X", "x"))
    count = int(match[1] or 1) * int(Decimal(match[2]) * _UNIT[match[3]]) if match else 0
    if count <= 0:
        raise ValueError("must be a count such as 135M, 0.5B or 30B-A3B")
    return count
