"""Decides which origin a host name belongs to: exact beats wildcard, the longest suffix wins (contracts section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class HostTable(Generic[Value]):
    """``exact`` by host, ``wildcard`` by what follows ``*.``; keys are lower-case, without port or brackets."""

    exact: Mapping[str, Value]
    wildcard: Mapping[str, Value]

    def find(self, host: str) -> Value | None:
        """The value for a lower-case host without port, or None."""
        found = self.exact.get(host)
        if found is not None:
            return found
        if host.startswith("[") or host.endswith("."):
            host = _plain(host)
            if host in self.exact:
                return self.exact[host]
        # Each step drops the first label, so the first hit is the longest suffix and at least one label is left over.
        rest = host
        while self.wildcard and (dot := rest.find(".")) >= 0:
            label, rest = rest[:dot], rest[dot + 1 :]
            if label and rest in self.wildcard:
                return self.wildcard[rest]
        return None


def compile_hosts(origins: Mapping[str, Value]) -> HostTable[Value]:
    """A table from configuration keys: a host name, an IP literal, or ``*.suffix``."""
    exact: dict[str, Value] = {}
    wildcard: dict[str, Value] = {}
    for key, value in origins.items():
        host = _plain(key.lower())
        if host.startswith("*."):
            wildcard[_punycode(host[2:])] = value
        else:
            exact[_punycode(host)] = value
    return HostTable(exact, wildcard)


def _plain(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1]
    return host.removesuffix(".")


def _punycode(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode("ascii")
