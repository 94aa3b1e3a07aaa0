"""Decides which known names are close enough to a wrong one to be worth offering."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_OFFERED = 3
_CLOSENESS = 0.6
# difflib is quadratic in the length of the names, and the wrong name is the caller's.
_COMPARED_CHARACTERS = 64
_COMPARED_NAMES = 500


def near_names(wrong: str, known: Iterable[str]) -> tuple[str, ...]:
    """At most three of ``known``, the closest first, regardless of case."""
    folded: dict[str, str] = {}
    for name in known:
        if len(folded) == _COMPARED_NAMES:
            break
        folded.setdefault(name.casefold()[:_COMPARED_CHARACTERS], name)
    wanted = wrong.casefold()[:_COMPARED_CHARACTERS]
    close = difflib.get_close_matches(wanted, folded, n=_OFFERED, cutoff=_CLOSENESS)
    # A family name ("qwen") shares few letters with "qwen2.5-0.5b-instruct" but is surely what was meant.
    close += [name for name in folded if len(wanted) >= 3 and wanted in name and name not in close]
    return tuple(folded[name] for name in close[:_OFFERED])
