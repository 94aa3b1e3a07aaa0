"""Values of the engine domain: availability, acquired binaries, launch specs and plans, exit verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from sbproxy.devices.core.model import DeviceKind

AvailabilityState = Literal["available", "acquirable", "incompatible", "blocked"]
AcquisitionMethod = Literal["path", "search_path", "wheel", "archive", "container", "uv"]


@dataclass(frozen=True, slots=True)
class AcquisitionOption:
    """One way to get an engine, in the order they are tried; ``detail`` is bounded, printable text."""

    method: AcquisitionMethod
    available: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Availability:
    """Document 1, "Managed engines": one of four states before provisioning, with a bounded reason."""

    engine: str
    state: AvailabilityState
    reason: str
    program: Path | None = None
    version: str | None = None
    options: tuple[AcquisitionOption, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineBinary:
    """An executable on this machine. ``flags`` is every long or short option its own --help names.

    ``valued`` are those options that are followed by a value. For a container ``program`` is the runtime's command
    line tool, ``image`` the image pinned by digest, and ``sha256`` that digest.
    """

    engine: str
    program: Path
    sha256: str
    version: str
    method: AcquisitionMethod
    flags: frozenset[str] = field(repr=False)
    valued: frozenset[str] = field(default=frozenset(), repr=False)
    image: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What one replica wants of its engine. ``context_tokens`` is per request (slot), not the pool.

    ``model_path`` is the weight file of a GGUF model, else the snapshot's folder. ``kv_bytes``, ``total_bytes`` and
    ``device_total_bytes`` are the admitted estimate and the card's size, per device. ``offload_layers`` are the expert
    layers that stay in CPU memory.
    """

    deployment: str
    generation: int
    model_path: Path
    context_tokens: int
    parallel: int
    device: DeviceKind = "cpu"
    device_indexes: tuple[int, ...] = ()
    modality: str = "chat"
    kv_quant: str = "auto"
    extra_args: tuple[str, ...] = ()
    replica: int = 0
    tensor_parallel: int = 1
    kv_bytes: int = 0
    total_bytes: int = 0
    device_total_bytes: int = 0
    offload_layers: int = 0
    prefix_caching: bool = False
    max_batched_tokens: int | None = None
    chunked_prefill: bool = False
    tool_call_parser: str | None = None
    swap_space_gib: float | None = None
    cpu_offload_gib: float | None = None
    network: bool = False
    """True only for a raw repository reference of a ``serve:`` block, which the engine fetches itself."""
    repository: str | None = None
    """That reference, in the engine's own spelling; ``model_path`` is then the folder that it may write to."""
    repository_file: str | None = None
    """The one file of ``repository`` that was asked for (llama.cpp)."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a running engine answers, and what it must be told. The key never reaches argv or a log."""

    host: str
    port: int
    alias: str
    api_key: str = field(repr=False)


class ExitKind(StrEnum):
    """Why an engine process ended, or did not start."""

    BAD_FILE = "bad_file"
    OUT_OF_MEMORY = "out_of_memory"
    BAD_FLAG = "bad_flag"
    PORT = "port"
    SIGNAL = "signal"
    CRASH = "crash"
    READINESS_TIMEOUT = "readiness_timeout"
    UNRESPONSIVE = "unresponsive"
    """It was ready, still runs, and answers no health check any more."""
    STOPPED = "stopped"
    """We asked it to end and it did."""


@dataclass(frozen=True, slots=True)
class ExitVerdict:
    """``returncode`` is the shell's (negative: signal), ``detail`` one bounded line for people."""

    kind: ExitKind
    returncode: int | None
    detail: str

    @property
    def worth_retry(self) -> bool:
        """Whether the same plan may work at the next try; a bad file or flag never will."""
        return self.kind in _WORTH_RETRY


_WORTH_RETRY = frozenset(
    {ExitKind.SIGNAL, ExitKind.CRASH, ExitKind.PORT, ExitKind.READINESS_TIMEOUT, ExitKind.UNRESPONSIVE}
)
