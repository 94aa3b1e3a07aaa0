"""Decides which known names are close enough to a wrong one to be worth offering. One answer for every room."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 3
"""Names offered at most."""

_CLOSENESS = 0.7
# A shorter piece of a name ("7b", "gp") stands in too many of them to mean one.
_TELLING_CHARACTERS = 3
# difflib is quadratic in the length of the names, and the wrong name is the caller's.
_COMPARED_CHARACTERS = 64
_COMPARED_NAMES = 500


def near_names(wrong: str, known: Iterable[str]) -> tuple[str, ...]:
    """At most :data:`MOST` of ``known``, best first, regardless of case: the same for the same names in any order.

    A beginning is surely meant ("smollm" for "smollm2-135m-instruct", though few letters agree), then a piece
    of a name, then a name of nearly the same letters.
    """
    folded: dict[str, str] = {}
    for name in sorted(set(known)):
        folded.setdefault(name.casefold()[:_COMPARED_CHARACTERS], name)
    wanted = wrong.strip()[:_COMPARED_CHARACTERS].casefold()
    begun, holding = [], []
    if len(wanted) >= _TELLING_CHARACTERS:
        begun = [name for name in folded if name.startswith(wanted)]
        holding = [name for name in folded if wanted in name[1:]]
    compared = list(folded)[:_COMPARED_NAMES]
    alike = difflib.get_close_matches(wanted, compared, n=MOST, cutoff=_CLOSENESS)
    best = dict.fromkeys([*sorted(begun, key=len), *sorted(holding, key=len), *alike])
    return tuple(folded[name] for name in list(best)[:MOST])
