"""What a start of the daemon can be told beside its configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

LogFormat = Literal["compact", "pretty", "json"]

DEFAULT_GRACE_MS = 30_000
"""Contracts section 1: applied to the data plane first, then to the runtimes."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """``grace_ms`` bounds the drain of running answers at shutdown."""

    environ: Mapping[str, str] = field(repr=False)
    log_level: str = "info"
    log_format: LogFormat = "compact"
    grace_ms: int = DEFAULT_GRACE_MS
    watch: bool = True
