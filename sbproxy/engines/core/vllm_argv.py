"""The command line of one ``vllm serve``, as a pure function of the build's options and the launch spec.

Neither the API key (the environment has it) nor anything that runs foreign code is ever said. Options went from
vLLM's builds over the years (``--task``, ``--swap-space``), so that each is looked up first. Contracts sections 15, 20.
"""

from __future__ import annotations

from sbproxy.engines.core.allow_list import AllowList
from sbproxy.engines.core.flags import Flags
from sbproxy.engines.core.model import LaunchSpec
from sbproxy.engines.core.server_seat import ServerSeat
from sbproxy.engines.core.settings import memory_utilisation, refuse_modality, refuse_settings, whole_gib
from sbproxy.engines.core.words import Words
from sbproxy.errors.engines import EngineIncompatible, UnsafeArgument

ENGINE = "vllm"
KEY_VARIABLE = "VLLM_API_KEY"
HELP_WORDS: tuple[tuple[str, ...], ...] = (("serve", "--help=all"), ("serve", "--help"))
"""Newer builds print their groups alone unless asked for all, older ones refuse to be asked so."""
REQUIRED = ("--host", "--port", "--served-model-name", "--max-model-len", "--max-num-seqs")

SETTINGS = frozenset({"tool_call_parser", "swap_space_gib", "cpu_offload_gib", "chunked_prefill", "tensor_parallel"})
KV_RUNS = {"fp8": "fp8", "int8": "fp8", "int4": "fp8"}
"""``kv_quant`` to what it runs as; f16 and auto are the model's own type."""

ALLOW_LIST = AllowList(
    ENGINE,
    allowed={
        "--async-scheduling": False,
        "--attention-backend": True,
        "--block-size": True,
        "--cuda-graph-sizes": True,
        "--disable-cascade-attn": False,
        "--disable-custom-all-reduce": False,
        "--disable-log-stats": False,
        "--disable-sliding-window": False,
        "--enforce-eager": False,
        "--long-prefill-token-threshold": True,
        "--max-cudagraph-capture-size": True,
        "--max-log-len": True,
        "--max-logprobs": True,
        "--max-long-partial-prefills": True,
        "--max-num-partial-prefills": True,
        "--max-seq-len-to-capture": True,
        "--no-async-scheduling": False,
        "--reasoning-parser": True,
        "--scheduling-policy": True,
        "--seed": True,
        "--tokenizer-mode": True,
    },
    owned=(
        ("the model", ("model.*", "served-model-name", "tokenizer", "(code-|tokenizer-)?revision", "hf-.*", "lora-.*")),
        ("the model", ("quantization", "q", "load-format", "dtype", "download-dir", "config.*", "enable-lora")),
        ("the task of the model", ("task", "runner", "convert")),
        ("the address and the network", ("host", "port", "uds", "root-path", "ssl-.*", "allow(ed)?-.*", "grpc.*")),
        ("the address and the network", ("headless", "master-.*", "node-rank", "nnodes", "data-parallel-.*", "dp.*")),
        ("access to the engine", ("api-key", "middleware", "enable-(server-)?dev.*", "disable-fastapi-docs")),
        ("foreign code", ("trust-remote-code", ".*plugin.*", "worker-.*", "model-impl", "logits-processors")),
        ("the device", ("device.*", "tensor-parallel-size", "tp", "pipeline-parallel-size", "pp", "distributed-.*")),
        ("the memory plan", ("max-model-len", "max-num-seqs", "gpu-memory-utilization", "kv-cache-.*", "swap-space")),
        ("the memory plan", ("cpu-offload-.*", "(no-)?enable-prefix-caching", "max-num-batched-tokens")),
        ("the memory plan", ("(no-)?enable-chunked-prefill", "num-gpu-blocks-override")),
        ("the tool parser", ("tool-call-parser", "(no-)?enable-auto-tool-choice")),
        ("the engine's life", ("enable-log-requests", "shutdown-timeout", "enable-sleep-mode", "api-server-count")),
    ),
)
"""What contracts section 20 leaves to us: tuning that names no file, address or code, and leaves the plan alone."""


def vllm_arguments(flags: Flags, spec: LaunchSpec, seat: ServerSeat) -> tuple[str, ...]:
    """Everything after the program's name, ``serve`` first.

    Raises EngineIncompatible (a setting, task or option that vLLM or this build does not have) or UnsafeArgument.
    """
    refuse_settings(ENGINE, spec, SETTINGS)
    refuse_modality(ENGINE, spec)
    extra = ALLOW_LIST.parse(spec.extra_args)
    words = Words(flags, frozenset(name for name, _ in extra))
    words.need("--host", value=seat.host)
    words.need("--port", value=seat.port)
    words.need("--served-model-name", value=seat.alias)
    _memory(words, spec)
    _scheduling(words, spec)
    _task(words, spec)
    words.want("--disable-fastapi-docs")
    words.want("--no-enable-log-requests", "--disable-log-requests")
    for name, value in extra:
        words.need(name, value=value)
    words.check(ENGINE, ENGINE)
    return ("serve", seat.model, *words.words)


def vllm_environment(spec: LaunchSpec) -> dict[str, str]:
    """Variables of this launch; offline unless it serves a repository that it fetches itself."""
    said = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if not spec.network:
        said |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if spec.device == "cpu":
        # In whole GiB; the CPU's cache is not bounded by an option.
        said["VLLM_CPU_KVCACHE_SPACE"] = str(whole_gib(spec.kv_bytes))
    return said


def _memory(words: Words, spec: LaunchSpec) -> None:
    words.need("--max-model-len", value=spec.context_tokens)
    words.need("--max-num-seqs", value=spec.parallel)
    if spec.tensor_parallel > 1:
        words.need("--tensor-parallel-size", value=spec.tensor_parallel)
    if spec.device == "cuda":
        share = memory_utilisation(spec)
        if share is not None:
            words.need("--gpu-memory-utilization", value=share)
        if spec.kv_bytes > 0:
            # Builds before this option are bounded by the share alone.
            words.want("--kv-cache-memory-bytes", value=spec.kv_bytes)
    if spec.kv_quant in KV_RUNS:
        words.need("--kv-cache-dtype", value=KV_RUNS[spec.kv_quant])
    if spec.swap_space_gib:
        words.need("--swap-space", value=spec.swap_space_gib)
    if spec.cpu_offload_gib:
        words.need("--cpu-offload-gb", value=spec.cpu_offload_gib)


def _scheduling(words: Words, spec: LaunchSpec) -> None:
    if spec.prefix_caching:
        words.need("--enable-prefix-caching")
    else:
        words.want("--no-enable-prefix-caching")
    if spec.chunked_prefill or spec.max_batched_tokens is not None:
        words.need("--enable-chunked-prefill")
    if spec.max_batched_tokens is not None:
        if spec.max_batched_tokens < spec.parallel:
            reason = f"chunked_prefill.max_batched_tokens {spec.max_batched_tokens} is below max_concurrency"
            raise EngineIncompatible(ENGINE, f"{reason} {spec.parallel}; each request needs a token a step")
        words.need("--max-num-batched-tokens", value=spec.max_batched_tokens)
    if spec.tool_call_parser is not None:
        words.need("--enable-auto-tool-choice")
        words.need("--tool-call-parser", value=plain_word(ENGINE, "tool_call_parser", spec.tool_call_parser))


def _task(words: Words, spec: LaunchSpec) -> None:
    if spec.modality == "chat":
        return
    task, conversion = ("embed", "embed") if spec.modality == "embedding" else ("score", "classify")
    if not words.want("--task", value=task):
        words.need("--runner", value="pooling")
        words.need("--convert", value=conversion)


def plain_word(engine: str, name: str, value: str) -> str:
    """A value of the configuration that is to be one word of a command line. Raises UnsafeArgument."""
    if not value.replace("-", "").replace("_", "").replace(".", "").isalnum() or value.startswith("-"):
        raise UnsafeArgument(engine, name, "its value may only hold letters, digits and _ . -")
    return value
