"""Finds the key that a request presents, in the configured headers (contracts section 7, ``inbound.headers``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sbproxy.errors.keys import KeyConflict, KeyMissing

HeaderPairs = Sequence[tuple[bytes, bytes]]


class PresentedKeys:
    """``headers``: name and scheme (``Bearer `` or empty), most wanted first."""

    def __init__(self, headers: Iterable[tuple[str, str]]) -> None:
        listed = tuple(headers)
        self._schemes = {name.lower().encode(): scheme.lower().encode() for name, scheme in listed}
        self.names = frozenset(self._schemes)
        """Header names, lower case, that never go upstream."""
        self._missing = KeyMissing(" or ".join(f"{name}: {scheme}<key>" for name, scheme in listed))

    def find(self, headers: HeaderPairs) -> tuple[bytes, bytes] | KeyConflict | None:
        """Header name and token. The same token twice is one key; a header with another scheme holds no key."""
        schemes = self._schemes
        found: tuple[bytes, bytes] | None = None
        for name, value in headers:
            scheme = schemes.get(name)
            if scheme is None:
                continue
            if scheme:
                if value[: len(scheme)].lower() != scheme:
                    continue
                value = value[len(scheme) :]
            token = value.strip()
            if not token:
                continue
            if found is not None and found[1] != token:
                return KeyConflict()
            if found is None:
                found = (name, token)
        return found

    def missing(self) -> KeyMissing:
        return KeyMissing(self._missing.header)
