"""How much memory a deployment needs: one set of formulas for every caller (contracts section 15).

Where that memory could be is ``core.placement``, and who has it is ``core.residency``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sbproxy.catalog.core.model import Modality, Variant
from sbproxy.catalog.core.parameters import parameter_count
from sbproxy.modelhost.core.gguf import ModelShape
from sbproxy.modelhost.core.status import MemoryEstimate

WeightClass = Literal["f16", "fp8", "q8", "q5", "q4"]

BYTES_PER_WEIGHT: dict[WeightClass, float] = {"f16": 2.0, "fp8": 1.0, "q8": 1.06, "q5": 0.69, "q4": 0.56}
OVERHEAD = 1.15 - 1

_KV_BYTES: dict[str, float] = {"f16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
_SUFFIXES = {"gguf": (".gguf",), "safetensors": (".safetensors",), "pickle": (".bin", ".pt", ".pth")}


@dataclass(frozen=True, slots=True)
class Demand:
    """What one engine is asked to hold. ``context_tokens`` is per request, ``shape`` None when it is unknown."""

    weight_bytes: int
    weight_class: WeightClass
    context_tokens: int
    concurrency: int
    modality: Modality
    engine: str
    kv_quant: str
    shape: ModelShape | None
    tensor_parallel: int = 1


def classify(quant: str) -> WeightClass:
    """The weight class of a quantization name (section 15, "Name classification")."""
    name = quant.lower()
    if "fp8" in name:
        return "fp8"
    if name.startswith("q4") or any(mark in name for mark in ("int4", "awq", "gptq")):
        return "q4"
    if name.startswith("q5"):
        return "q5"
    if name.startswith("q8") or "int8" in name:
        return "q8"
    return "f16"


def weight_bytes(variant: Variant, params: str, shape: ModelShape | None = None) -> int:
    """Bytes of weights: the exact size of the catalog's weight files, else parameters times bytes per weight.

    An exact size beats an estimate in both directions: mixed quantizations and tied embeddings make the estimate
    wrong by a third on small models.
    """
    exact = sum(file.size_bytes for file in variant.files if file.path.lower().endswith(_SUFFIXES[variant.format]))
    if exact:
        return exact
    count = (shape.parameters if shape else None) or parameter_count(params)
    return int(count * BYTES_PER_WEIGHT[classify(variant.quant)])


def context_tokens(explicit: int | None, catalog: int | None, shape: ModelShape | None) -> int:
    """The context of one request: explicit, else the catalog's, else the model's, else 1; never above the model's."""
    model = shape.context_length if shape else None
    chosen = explicit or catalog or model or 1
    return min(chosen, model) if model else chosen


def kv_bytes_per_element(engine: str, kv_quant: str, weights: WeightClass) -> float:
    """Bytes the engine will really use: vLLM and SGLang run int4 as fp8, mistral.rs ignores the request."""
    default = 1.0 if weights == "fp8" else 2.0
    if kv_quant == "auto" or engine == "mistralrs":
        return default
    if engine in ("vllm", "sglang") and kv_quant in ("int8", "int4"):
        return 1.0
    return _KV_BYTES[kv_quant]


def estimate(demand: Demand, device_indexes: tuple[int, ...], safety_margin: float) -> MemoryEstimate:
    """All terms per device, each truncated to whole bytes before they are summed.

    Without a shape the KV term is 0, and the figure a lower bound.
    """
    weights = demand.weight_bytes / demand.tensor_parallel
    kv = 0.0
    if demand.modality == "chat" and demand.shape is not None:
        per_token = 2 * demand.shape.layers * demand.shape.kv_heads * demand.shape.head_dim
        element = kv_bytes_per_element(demand.engine, demand.kv_quant, demand.weight_class)
        kv = per_token * element * demand.context_tokens * demand.concurrency / demand.tensor_parallel
    overhead = (weights + kv) * OVERHEAD
    margin = (weights + kv + overhead) * safety_margin
    return MemoryEstimate(
        device_indexes=device_indexes,
        weight_bytes=int(weights),
        kv_bytes=int(kv),
        runtime_overhead_bytes=int(overhead),
        safety_margin_bytes=int(margin),
    )


def amount(size: int) -> str:
    """Bytes for people."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"
