"""Puts a deployment and its resolved artifact into the terms of memory fit, placement and launch. The one place where
they meet."""

from __future__ import annotations

from sbproxy.artifacts.core.model import Snapshot
from sbproxy.catalog.core.model import ResolvedArtifact, Variant
from sbproxy.config.core.model_host import DeploymentConfig, EngineConfig, ModelHostConfig
from sbproxy.engines.core.model import LaunchSpec
from sbproxy.modelhost.core.gguf import ModelShape
from sbproxy.modelhost.core.memory_fit import Demand, classify, context_tokens, weight_bytes
from sbproxy.modelhost.core.placement import Option, Policy
from sbproxy.modelhost.ledger import Holder


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
        modality=config.modality or model.modality,
        engine=artifact.engine,
        kv_quant=config.kv_quant,
        shape=shape,
    )


def described(demand: Demand) -> str:
    """What the KV term of a refusal was computed for."""
    return f"context {demand.context_tokens} tokens, concurrency {demand.concurrency}"


def weight_file(variant: Variant) -> str:
    """The file an engine is pointed at: the first weight file by name, which is part 00001 of a split model."""
    names = sorted(file.path for file in variant.files if file.path.lower().endswith(f".{variant.format}"))
    return names[0] if names else variant.files[0].path


def policy_of(artifact: ResolvedArtifact, config: DeploymentConfig, host: ModelHostConfig) -> Policy:
    """What limits the choice of devices for this deployment."""
    requirements = artifact.variant.requirements
    engine = next((block for name, block in host.engines.items() if name == artifact.engine), EngineConfig())
    return Policy(
        accelerators=requirements.accelerators,
        acceleration=engine.acceleration,
        tensor_parallel=config.tensor_parallel,
        safety_margin=host.safety_margin,
        min_memory_bytes=requirements.min_memory_bytes or 0,
    )


def no_device(policy: Policy) -> str:
    kinds = ", ".join(policy.accelerators)
    return (
        f"acceleration {policy.acceleration} and the variant's accelerators ({kinds}) leave no device of this machine"
    )


def launch_spec(
    holder: Holder,
    config: DeploymentConfig,
    snapshot: Snapshot,
    artifact: ResolvedArtifact,
    demand: Demand,
    option: Option,
) -> LaunchSpec:
    """The launch of one replica at its place. A GGUF engine is pointed at a file, the others at the folder."""
    variant = artifact.variant
    chunks, repository = config.chunked_prefill, variant.repository
    return LaunchSpec(
        deployment=holder[0],
        generation=holder[1],
        replica=holder[2],
        model_path=snapshot.path if repository or variant.format != "gguf" else snapshot.file(weight_file(variant)),
        context_tokens=demand.context_tokens,
        parallel=demand.concurrency,
        device=option.kind,
        device_indexes=option.need.device_indexes,
        modality=demand.modality,
        kv_quant=config.kv_quant,
        extra_args=tuple(config.extra_args),
        tensor_parallel=len(option.devices),
        kv_bytes=option.need.kv_bytes,
        total_bytes=option.need.total_bytes,
        device_total_bytes=min(device.total_bytes for device in option.devices),
        offload_layers=option.offload_layers,
        prefix_caching=config.enable_prefix_caching,
        chunked_prefill=chunks is not None,
        max_batched_tokens=chunks.max_batched_tokens if chunks else None,
        tool_call_parser=config.tool_call_parser,
        swap_space_gib=config.swap_space_gib,
        cpu_offload_gib=config.cpu_offload_gib,
        network=repository is not None,
        repository=repository,
        repository_file=variant.repository_file,
    )
