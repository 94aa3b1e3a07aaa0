"""``proxy.model_host``: cache, engines and deployments (contracts section 14; document 1)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sbproxy.config.core.fields import Block, Identifier, Sha256Hex

EngineName = Literal["vllm", "sglang", "llama_cpp", "mistralrs"]
EngineChoice = Literal["auto", "vllm", "sglang", "llama_cpp", "mistralrs"]
Authority = Literal["file_managed", "admin_managed", "cluster_authority"]
PullPolicy = Literal["on_boot", "on_demand", "manual"]
ColdStart = Literal["wait", "reject", "fallback"]
KvQuant = Literal["auto", "f16", "fp8", "int8", "int4"]


class CacheConfig(Block):
    """Where verified artifacts live. ``directory`` must be absolute once expanded."""

    directory: str | None = None
    budget_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_resident_models: Annotated[int, Field(gt=0)] | None = None


class EngineConfig(Block):
    """How one engine is provisioned on this machine."""

    launch: Literal["binary", "container", "uv"] = "binary"
    image: str | None = None
    path: str | None = None
    version: str | None = None
    sha256: Sha256Hex | None = None
    acceleration: Literal["auto", "cuda", "metal", "vulkan", "cpu"] = "auto"
    shm_size_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class DeploymentConfig(Block):
    """One deployment as an operator writes it."""

    model: Identifier
    variant: Identifier | None = None
    heterogeneous_variants: bool = False
    replicas: Annotated[int, Field(ge=1)] = 1
    tensor_parallel: Annotated[int, Field(ge=1)] | None = None
    required_labels: dict[str, str] = {}
    spread_by: list[str] = []
    pull: PullPolicy = "on_demand"
    warm: bool = False
    cold_start: ColdStart | None = None
    keep_alive_secs: Annotated[int, Field(ge=0)] | None = None
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    max_queue_depth: Annotated[int, Field(ge=0)] = 128
    queue_timeout_ms: Annotated[int, Field(ge=1)] = 30_000
    engine: EngineChoice = "auto"
    rollout: Literal["rolling", "recreate"] = "rolling"
    max_context: Annotated[int, Field(ge=1)] | None = None
    kv_quant: KvQuant = "auto"
    extra_args: list[str] = []

    @property
    def concurrency(self) -> int:
        """Active requests at once; 1 when unset (contracts section 15)."""
        return self.max_concurrency or 1


class ModelHostConfig(Block):
    """The whole block; every field has the default of contracts section 14."""

    authority: Authority = "file_managed"
    store_path: str | None = None
    catalog_file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    max_parallel_prepares: Annotated[int, Field(gt=0)] = 2
    safety_margin: Annotated[float, Field(ge=0, lt=1)] = 0.10
    shutdown_deadline_ms: Annotated[int, Field(gt=0)] = 30_000
    handoff_timeout_ms: Annotated[int, Field(ge=1, le=86_400_000)] = 60_000
    cache: CacheConfig = CacheConfig()
    engines: dict[EngineName, EngineConfig] = {}
    deployments: dict[Identifier, DeploymentConfig] = {}
