"""What tells one Python engine from the other: its words, its variables, its devices. A value, one an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sbproxy.devices.core.model import DeviceKind
from sbproxy.engines.core.flags import Flags
from sbproxy.engines.core.model import LaunchSpec
from sbproxy.engines.core.server_seat import ServerSeat


@dataclass(frozen=True, slots=True)
class Dialect:
    """``program`` is the file in an environment's ``bin``, and the entry point of an image as ``entrypoint``.

    ``distributions`` are the names under which a Python may have it, ``kv_runs`` what ``kv_quant`` runs as.
    """

    engine: str
    program: str
    entrypoint: str
    distributions: tuple[str, ...]
    devices: frozenset[DeviceKind]
    help_words: tuple[tuple[str, ...], ...]
    required: tuple[str, ...]
    key_variable: str
    kv_runs: Mapping[str, str]
    arguments: Callable[[Flags, LaunchSpec, ServerSeat], tuple[str, ...]]
    environment: Callable[[LaunchSpec], dict[str, str]]
