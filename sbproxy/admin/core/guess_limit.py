"""Decides whether a password may be tried: so often a minute for one name from one address, and for one name at all.

An attempt counts from the moment that it is let through, so attempts side by side cannot outrun the count. What is
tried for one name never refuses another name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from sbproxy.admin.core.windows import Windows

PER_ADDRESS = 20
PER_NAME = 100
MAX_REMEMBERED = 10_000


class GuessLimit:
    """``known`` are the names of accounts: a flood of made-up names cannot push their counts out of memory."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = {_digest(name) for name in known}
        self._pairs = Windows(PER_ADDRESS, MAX_REMEMBERED)
        self._names = Windows(PER_NAME, len(self._known))
        self._strangers = Windows(PER_NAME, MAX_REMEMBERED)

    def reserve(self, address: str, name: str, now: float) -> int:
        """0 when the attempt may be made, which counts it; or else the seconds to wait."""
        key = _digest(name)
        names = self._names_of(key)
        wait_s = max(self._pairs.wait_s((address, key), now), names.wait_s(key, now))
        if not wait_s:
            self._pairs.add((address, key), now)
            names.add(key, now)
        return wait_s

    def give_back(self, address: str, name: str, now: float, attempts: int = 1) -> None:
        """The attempt was right: it does not count, nor do as many before it as make up ``attempts``.

        Never all of them: a program that signs in every second would wipe out what is counted against a guesser.
        """
        key = _digest(name)
        self._pairs.take_back((address, key), now, attempts)
        self._names_of(key).take_back(key, now, attempts)

    def _names_of(self, key: bytes) -> Windows:
        return self._names if key in self._known else self._strangers


def _digest(name: str) -> bytes:
    """As long for a name that somebody made up as for a real one."""
    return hashlib.sha256(name.encode()).digest()
