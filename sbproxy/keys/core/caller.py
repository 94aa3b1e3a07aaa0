"""Who calls, as far as it is known: a usable key, or one that the store has to be asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from sbproxy.keys.core.record import KeyRecord


@dataclass(frozen=True, slots=True)
class Known:
    """A usable key. ``header`` carried it, and must not go upstream."""

    record: KeyRecord
    policy_version: str
    header: bytes


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Not cached: only the store knows."""

    token: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    header: bytes = b""
    required: bool = False
