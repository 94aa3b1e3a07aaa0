"""Collects the words of one command line, against the options that the build at hand knows.

Each option is either required of the build (its lack is remembered) or said only when the build knows it.
"""

from __future__ import annotations

from sbproxy.engines.core.flags import Flags
from sbproxy.errors.engines import EngineIncompatible


class Words:
    """``taken`` are options that the operator says in extra_args; they replace what we would only like to say."""

    def __init__(self, flags: Flags, taken: frozenset[str] = frozenset()) -> None:
        self.flags = flags
        self.taken = taken
        self.words: list[str] = []
        self._missing: dict[str, None] = {}

    def need(self, *names: str, value: str | float | None = None) -> None:
        """Say the first of ``names`` that the build knows; remember the lack of all."""
        known = self.flags.first(*names)
        if known is None:
            self._missing[names[0]] = None
        else:
            self._say(known, value)

    def want(self, *names: str, value: str | float | None = None) -> bool:
        """Say it when the build knows it and the operator says nothing else; whether it was said."""
        known = self.flags.first(*names)
        if known is None or self.taken.intersection(names):
            return False
        self._say(known, value)
        return True

    def check(self, engine: str, program: str) -> None:
        """Raises EngineIncompatible naming every needed option that this build lacks."""
        if self._missing:
            lacks = ", ".join(sorted(self._missing))
            raise EngineIncompatible(engine, f"this build of {program} does not know {lacks}; use another build")

    def _say(self, name: str, value: str | float | None) -> None:
        self.words.append(name)
        if value is not None:
            self.words.append(str(value))
