"""Decides which ``extra_args`` an operator may give an engine: a published list of options, all others refused.

Which options an engine's list holds is that engine's module; how they are said to a build as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sbproxy.errors.engines import UnsafeArgument

_VALUE = re.compile(r"-?[A-Za-z0-9][A-Za-z0-9_.,:+-]{0,63}")


@dataclass(frozen=True, slots=True)
class AllowList:
    """``allowed``: long option name to whether it takes a value. ``short``: other spellings of those.

    ``owned`` is only for a better sentence: (whose it is, patterns of option names without their dashes).
    """

    engine: str
    allowed: Mapping[str, bool]
    short: Mapping[str, str] = field(default_factory=dict)
    owned: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def parse(self, extra_args: tuple[str, ...]) -> list[tuple[str, str | None]]:
        """(long name, value) pairs in order; both ``--flag value`` and ``--flag=value`` are understood.

        Raises UnsafeArgument for what is not on the list, a missing or odd value, or a repetition.
        """
        pairs: list[tuple[str, str | None]] = []
        rest = list(extra_args)
        while rest:
            word = rest.pop(0)
            written, equals, inline = word.partition("=")
            name = self.short.get(written, written)
            if name not in self.allowed:
                raise UnsafeArgument(self.engine, _shown(word), self._refusal(written))
            value: str | None = None
            if self.allowed[name]:
                if not equals and not rest:
                    raise UnsafeArgument(self.engine, name, "its value is missing")
                value = inline if equals else rest.pop(0)
                if not _VALUE.fullmatch(value):
                    raise UnsafeArgument(self.engine, name, "its value may only hold letters, digits and _ . , : + -")
            elif equals:
                raise UnsafeArgument(self.engine, name, "it takes no value")
            if any(name == earlier for earlier, _ in pairs):
                raise UnsafeArgument(self.engine, name, "it is given twice")
            pairs.append((name, value))
        return pairs

    def _refusal(self, name: str) -> str:
        for owner, patterns in self.owned:
            if re.fullmatch(rf"--?({'|'.join(patterns)})", name):
                return f"{owner} belongs to the model host"
        return "it is not on the list of allowed arguments"


def _shown(word: str) -> str:
    """A refused word may hold a secret after its ``=``; only its name is repeated."""
    return "".join(char if char.isprintable() else "?" for char in word.partition("=")[0])[:64]
