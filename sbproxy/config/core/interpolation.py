"""``${VAR}``: what a scalar's text becomes, given the environment.

Works on one scalar at a time, after the YAML was parsed, so that a variable's content can never add structure.
No defaults, no nesting, no escapes; a second pass is never made over what a variable held.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

LARGEST_TEXT = 1 << 20
"""Characters that one scalar may grow to."""

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_STAND_INS = "\ufdd0\ufdd1\ufdd2"
_ORIGINALS = str.maketrans(_STAND_INS, "${}")
_OPENING = re.compile(r"\$\{")


@dataclass(frozen=True, slots=True)
class Expansion:
    """``missing`` names the variables that are not set, ``malformed`` tells of a ``${`` that is no reference."""

    text: str
    missing: tuple[str, ...] = ()
    malformed: bool = False


def expand(written: str, environ: Mapping[str, str]) -> Expansion:
    """Fill in what is set and leave the rest as written. Raises ValueError when the text would grow beyond bounds."""
    if "${" not in written:
        return Expansion(written)
    names = [match[1] for match in _REFERENCE.finditer(written)]
    if len(written) + sum(len(environ.get(name, "")) for name in names) > LARGEST_TEXT:
        raise ValueError(f"longer than {LARGEST_TEXT} characters once its variables are filled in")
    missing = tuple(dict.fromkeys(name for name in names if name not in environ))
    text = _REFERENCE.sub(lambda match: environ.get(match[1], match[0]), written)
    return Expansion(text, missing, malformed=len(_OPENING.findall(written)) > len(names))


def shielded(text: str) -> str:
    """YAML text whose references hold no brace, so that a flow mapping may hold a bare ``${VAR}``. Keeps all columns.

    The stand-ins are characters that Unicode sets aside for such inner use. Raises ValueError when ``text`` has one.
    """
    if any(char in text for char in _STAND_INS):
        raise ValueError("the characters U+FDD0 to U+FDD2 are not allowed")
    return _REFERENCE.sub(lambda match: f"{_STAND_INS[:2]}{match[1]}{_STAND_INS[2]}", text)


def unshielded(text: str) -> str:
    return text.translate(_ORIGINALS)


def is_reference(written: str) -> bool:
    """Whether the whole text is one ``${VAR}``."""
    return _REFERENCE.fullmatch(written) is not None
