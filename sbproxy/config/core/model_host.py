"""``proxy.model_host``: cache, engines and deployments (contracts section 14; document 1)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sbproxy.config.core.fields import AbsolutePath, Block, FilePath, Identifier, Name, Sha256Hex, ShortName

EngineName = Literal["vllm", "sglang", "llama_cpp", "mistralrs"]
EngineChoice = Literal["auto", "vllm", "sglang", "llama_cpp", "mistralrs"]
Authority = Literal["file_managed", "admin_managed", "cluster_authority"]
PullPolicy = Literal["on_boot", "on_demand", "manual"]
ColdStart = Literal["wait", "reject", "fallback"]
KvQuant = Literal["auto", "f16", "fp8", "int8", "int4"]
ModalityChoice = Literal["chat", "embedding", "rerank", "speech_to_text", "text_to_speech", "image"]
Gib = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CacheConfig(Block):
    """Where verified artifacts live."""

    directory: AbsolutePath | None = None
    """Absolute path of the cache. Default: `$HF_HOME`, /var/lib/sbproxy/models if writable, ~/.cache/sbproxy/models."""
    budget_gib: Gib | None = None
    """Size in GiB above which unused artifacts are collected."""
    max_resident_models: Annotated[int, Field(gt=0)] | None = None
    """How many deployments may be loaded at once, over all devices."""
    eviction: Literal["lru", "never"] = "lru"
    """What a load without room may displace: the least recently used idle deployment, or nothing."""


class EngineConfig(Block):
    """How one engine is provisioned on this machine."""

    launch: Literal["binary", "container", "uv"] = "binary"
    """How the engine runs; `uv` only for vllm and sglang."""
    image: Annotated[str, Field(min_length=1)] | None = None
    """Container image with its digest (`name@sha256:...`), only with `launch: container`."""
    path: FilePath | None = None
    """The engine's executable; first choice when set. A relative path starts at the directory of this document."""
    version: ShortName | None = None
    """Exact version to acquire, never `latest`."""
    sha256: Sha256Hex | None = None
    """SHA-256 that the acquired engine must have."""
    acceleration: Literal["auto", "cuda", "metal", "vulkan", "cpu"] = "auto"
    """Which build of the engine to use."""
    shm_size_gib: Gib | None = None
    """Shared memory of the container in GiB, only with `launch: container`."""


class ChunkedPrefill(Block):
    """Prompt processing in pieces between decode steps (vLLM and SGLang)."""

    max_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one step over all requests."""
    target_ttft_ms: Annotated[int, Field(ge=1)] | None = None
    """Wished time to the first token in milliseconds, from which the step size is chosen when it is not given."""


class ReferencePrice(Block):
    """The hosted model that a local one displaces, and what its tokens cost."""

    model: Name
    """Name of the hosted model."""
    prompt_micros_per_mtok: Annotated[int, Field(ge=0)] = 0
    """Millionths of a dollar for a million prompt tokens."""
    completion_micros_per_mtok: Annotated[int, Field(ge=0)] = 0
    """Millionths of a dollar for a million completion tokens."""


class DeploymentConfig(Block):
    """One deployment as an operator writes it."""

    model: Identifier
    """Model id of the catalog."""
    variant: Identifier | None = None
    """Exact variant of the model; without it the first one that runs here is taken."""
    heterogeneous_variants: bool = False
    """Replicas may run different variants."""
    replicas: Annotated[int, Field(ge=1)] = 1
    """How many engine processes serve this deployment."""
    tensor_parallel: Annotated[int, Field(ge=1)] | None = None
    """Devices a replica is split over; the planner decides when unset."""
    required_labels: dict[str, str] = {}
    """Labels that a node must have."""
    spread_by: list[str] = []
    """Labels over which replicas are spread, most important first."""
    pull: PullPolicy = "on_demand"
    """When a missing artifact is fetched; `manual` needs `sbproxy models pull`."""
    warm: bool = False
    """Start the engine before the configuration becomes active."""
    cold_start: ColdStart | None = None
    """What a request does when no replica is ready; default `wait`."""
    keep_alive_secs: Annotated[int, Field(ge=0)] | None = None
    """Seconds without a request after which the engine is stopped; never when unset."""
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    """Requests the engine answers at once; 1 when unset."""
    max_queue_depth: Annotated[int, Field(ge=0)] = 128
    """Requests that may wait; 0 means no queue."""
    queue_timeout_ms: Annotated[int, Field(ge=1)] = 30_000
    """How long a request may wait, in milliseconds."""
    engine: EngineChoice = "auto"
    """Engine to run the model with."""
    rollout: Literal["rolling", "recreate"] = "rolling"
    """Start the new generation before the old one ends (`rolling`), or after (`recreate`)."""
    max_context: Annotated[int, Field(ge=1)] | None = None
    """Context length of one request in tokens; the catalog's when unset."""
    kv_quant: KvQuant = "auto"
    """Quantization of the KV cache."""
    extra_args: list[str] = []
    """Further engine flags, one argv element each, filtered against the engine's allow-list."""
    pinned: bool = False
    """Never evict this deployment to make room for another."""
    modality: ModalityChoice | None = None
    """Task of the model; the catalog's when unset."""
    enable_prefix_caching: bool = False
    """Reuse the KV blocks of common prompt prefixes (vLLM)."""
    chunked_prefill: ChunkedPrefill | None = None
    """Chunked prefill (vLLM and SGLang)."""
    tool_call_parser: ShortName | None = None
    """Tool-call parser of the model's format; turns on automatic tool choice (vLLM and SGLang)."""
    swap_space_gib: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Swap pool in CPU memory, in GiB (vLLM)."""
    cpu_offload_gib: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Weights that stay in CPU memory, in GiB (vLLM and SGLang)."""
    engine_version: ShortName | None = None
    """Version of the engine for this deployment alone; must be the host's when both are set."""
    engine_image: Annotated[str, Field(min_length=1)] | None = None
    """Container image for this deployment alone, pinned by digest."""
    engine_sha256: Sha256Hex | None = None
    """SHA-256 of the engine for this deployment alone."""
    reference: ReferencePrice | None = None
    """Hosted model that this deployment displaces; prices the value report."""

    @property
    def concurrency(self) -> int:
        """Active requests at once; 1 when unset (contracts section 15)."""
        return self.max_concurrency or 1


class ModelHostConfig(Block):
    """Models that this daemon runs itself; every field has the default of contracts section 14."""

    authority: Authority = "file_managed"
    """Which system owns the deployments."""
    store_path: FilePath | None = None
    """Store of admin-managed deployments."""
    catalog_file: FilePath | None = None
    """Catalog v2 document that replaces the built-in one; a relative path starts at the directory of this document."""
    max_parallel_prepares: Annotated[int, Field(gt=0)] = 2
    """How many deployments are pulled and started at the same time."""
    safety_margin: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.10
    """Share of the memory estimate that is added on top of it."""
    shutdown_deadline_ms: Annotated[int, Field(gt=0)] = 30_000
    """How long a drain may take before engines are ended, in milliseconds."""
    handoff_timeout_ms: Annotated[int, Field(ge=1, le=86_400_000)] = 60_000
    """How long a rolling replacement may take, in milliseconds."""
    cache: CacheConfig = CacheConfig()
    """The artifact cache."""
    engines: dict[EngineName, EngineConfig] = {}
    """Provisioning by engine name."""
    deployments: dict[Identifier, DeploymentConfig] = {}
    """Deployment id to its definition."""
