"""Which settings of a deployment an engine has: one that it lacks is refused by name, never accepted and ignored.

How a setting is said on a command line is the engine's own module. Document 1, "Serve model settings".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from sbproxy.engines.core.model import LaunchSpec
from sbproxy.errors.engines import EngineIncompatible

GIB = 1024**3
UTILISATION_SPARE_BYTES = 2 * GIB
MIN_UTILISATION, MAX_UTILISATION = 0.2, 0.95

LOWERED: Final = frozenset({"fp8", "int8", "int4"})
"""Values of ``kv_quant`` that ask for less than the model's own type."""

_ASKED: dict[str, Callable[[LaunchSpec], bool]] = {
    "tool_call_parser": lambda spec: spec.tool_call_parser is not None,
    "swap_space_gib": lambda spec: spec.swap_space_gib is not None,
    "cpu_offload_gib": lambda spec: spec.cpu_offload_gib is not None,
    "chunked_prefill": lambda spec: spec.chunked_prefill or spec.max_batched_tokens is not None,
    "tensor_parallel": lambda spec: spec.tensor_parallel > 1,
    "offload_layers": lambda spec: spec.offload_layers > 0,
}
"""Settings that not every engine has, and whether a launch asks for one."""


def refuse_settings(engine: str, spec: LaunchSpec, supported: frozenset[str]) -> None:
    """Raises EngineIncompatible naming the first setting that is asked for and not ``supported``."""
    for name, asked in _ASKED.items():
        if name not in supported and asked(spec):
            raise EngineIncompatible(engine, f"it has no {name}; remove it from the deployment or use another engine")


def refuse_modality(engine: str, spec: LaunchSpec) -> None:
    """Raises EngineIncompatible for a task that none of the text engines serves."""
    if spec.modality not in ("chat", "embedding", "rerank"):
        raise EngineIncompatible(engine, f"it serves chat, embedding and rerank models, not {spec.modality}")


def memory_utilisation(spec: LaunchSpec) -> float | None:
    """Share of a card that an engine may take, 0.2 to 0.95 (contracts section 15); None without a card's size."""
    if spec.device_total_bytes <= 0:
        return None
    share = (spec.total_bytes + UTILISATION_SPARE_BYTES) / spec.device_total_bytes
    return round(min(max(share, MIN_UTILISATION), MAX_UTILISATION), 4)


def whole_gib(size_bytes: int) -> int:
    """At least 1; rounded up, because a cache smaller than the plan would refuse the plan's requests."""
    return max(1, math.ceil(size_bytes / GIB))


def substituted(spec: LaunchSpec, runs: Mapping[str, str]) -> str | None:
    """What the KV cache runs as where that is not what was asked for. ``runs``: asked to run."""
    actual = runs.get(spec.kv_quant)
    return actual if spec.kv_quant in LOWERED and actual not in (None, spec.kv_quant) else None
