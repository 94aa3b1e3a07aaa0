"""Puts a deployment and its resolved artifact into the terms of the memory fit. The one place where they meet."""

from __future__ import annotations

from sbproxy.catalog.core.model import ResolvedArtifact, Variant
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.modelhost.core.gguf import ModelShape
from sbproxy.modelhost.core.memory_fit import Demand, classify, context_tokens, weight_bytes


def demand_of(artifact: ResolvedArtifact, config: DeploymentConfig, shape: ModelShape | None) -> Demand:
    """What the engine of this deployment will be asked to hold. ``shape`` is that of the file's header, which wins;
    without it the catalog's figures count, and without those the KV cache is unknown."""
    model, variant = artifact.model, artifact.variant
    if shape is None and (told := model.attention) is not None:
        shape = ModelShape(told.layers, told.kv_heads, told.head_dim)
    return Demand(
        weight_bytes=weight_bytes(variant, model.params, shape),
        weight_class=classify(variant.quant),
        context_tokens=context_tokens(config.max_context, model.context_length, shape),
        concurrency=config.concurrency,
        modality=model.modality,
        engine=artifact.engine,
        kv_quant=config.kv_quant,
        shape=shape,
        tensor_parallel=config.tensor_parallel or 1,
    )


def described(demand: Demand) -> str:
    """What the KV term of a refusal was computed for."""
    return f"context {demand.context_tokens} tokens, concurrency {demand.concurrency}"


def weight_file(variant: Variant) -> str:
    """The file an engine is pointed at: the first weight file by name, which is part 00001 of a split model."""
    names = sorted(file.path for file in variant.files if file.path.lower().endswith(f".{variant.format}"))
    return names[0] if names else variant.files[0].path
