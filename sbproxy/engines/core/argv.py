"""The command line of one llama-server, as a pure function of the build's options and the launch spec.

Each option is either required of the build (else EngineIncompatible names it) or said only when the build knows it.
Never said: ``--props``, ``--tools``, ``--agent``, MCP, media and router options. Contracts section 20.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sbproxy.engines.core.extra_args import ENGINE, LOAD_OPTIONS, parse_extra_args, translate
from sbproxy.engines.core.flags import Flags
from sbproxy.engines.core.model import LaunchSpec
from sbproxy.engines.core.settings import refuse_modality, refuse_settings
from sbproxy.engines.core.words import Words
from sbproxy.errors.engines import EngineIncompatible

HOST = "127.0.0.1"
PROMPT_CACHE_MIB = 128
"""Host memory for saved prompts. The engine's own default of 8192 MiB would break every memory estimate;
this much may come on top of one, once prompts have been pushed out of their slots."""
IO_TIMEOUT_S = 600
SSE_PING_S = 15
MAX_EMBEDDING_BATCH = 8192

REQUIRED = (
    "--model", "--host", "--port", "--alias", "--api-key-file", "--ctx-size", "--parallel", "--gpu-layers",
)  # fmt: skip
"""Options without which no launch of ours can be said; a build that lacks one is no engine for us."""

SETTINGS = frozenset({"offload_layers", "tensor_parallel"})
"""Of the settings that not every engine has, those of llama.cpp."""
CPU_BATCH = 256
"""Prompt tokens a step on the CPU, for all requests together. A cancelled request frees its slot only after the step
that it is in, and 2048 tokens, the engine's own default, take a CPU many seconds."""

KV_TYPES = {"f16": "f16", "fp8": "q8_0", "int8": "q8_0", "int4": "q4_0"}
KV_SUBSTITUTES = {"fp8": KV_TYPES["fp8"]}
"""What it has no type for; its 8 and 4 bit types are what int8 and int4 mean."""
_QUANTISED = frozenset({"q8_0", "q4_0"})


@dataclass(frozen=True, slots=True)
class Seat:
    """What belongs to one process and not to the plan: where it listens and who it says it is."""

    port: int
    alias: str
    key_file: Path
    threads: int
    gpu: tuple[str, ...] = ()
    """Names to bind with ``--device``; empty when the environment binds the devices, or on the CPU."""


def llama_arguments(flags: Flags, spec: LaunchSpec, seat: Seat) -> tuple[str, ...]:
    """Everything after the program's name. The API key itself is only in ``seat.key_file``.

    Raises EngineIncompatible (the build lacks a needed option, or the modality is not llama.cpp's) or UnsafeArgument.
    """
    refuse_settings(ENGINE, spec, SETTINGS)
    refuse_modality(ENGINE, spec)
    extra = parse_extra_args(spec.extra_args)
    words = Words(flags, frozenset(name for name, _ in extra))
    _identity(words, spec, seat)
    _memory(words, spec, seat)
    _modality(words, spec)
    _hygiene(words, spec)
    words.check(ENGINE, "llama-server")
    return (*words.words, *translate(extra, flags))


def _identity(words: Words, spec: LaunchSpec, seat: Seat) -> None:
    _model(words, spec)
    words.need("--host", value=HOST)
    words.need("--port", value=seat.port)
    words.need("--alias", value=seat.alias)
    words.need("--api-key-file", value=str(seat.key_file))


def _model(words: Words, spec: LaunchSpec) -> None:
    if spec.repository is None:
        words.need("--model", value=str(spec.model_path))
        return
    if not spec.network:
        raise EngineIncompatible(ENGINE, f"{spec.repository} is a repository, which needs the network")
    words.need("--hf-repo", value=spec.repository)
    if spec.repository_file is not None:
        words.need("--hf-file", value=spec.repository_file)


def _memory(words: Words, spec: LaunchSpec, seat: Seat) -> None:
    # The pool is divided among the slots, and context_tokens is what each request may use.
    words.need("--ctx-size", value=spec.context_tokens * spec.parallel)
    words.need("--parallel", value=spec.parallel)
    words.want("--no-kv-unified")
    words.want("--fit", value="off")
    words.want("--cache-ram", value=PROMPT_CACHE_MIB)
    words.want("--threads", value=seat.threads)
    if spec.device == "cpu":
        if spec.tensor_parallel > 1:
            raise EngineIncompatible(ENGINE, "tensor_parallel is for several GPUs, the plan uses the CPU")
        words.need("--gpu-layers", value=0)
        words.want("--device", value="none")
        _own_weights(words)
        if spec.modality == "chat":
            words.want("--batch-size", value=CPU_BATCH)
            words.want("--ubatch-size", value=CPU_BATCH)
    else:
        _on_gpu(words, spec, seat)
    _kv_cache(words, spec)


def _on_gpu(words: Words, spec: LaunchSpec, seat: Seat) -> None:
    words.need("--gpu-layers", value=999)
    if seat.gpu:
        words.need("--device", value=",".join(seat.gpu))
    if spec.tensor_parallel > 1:
        words.need("--split-mode", value="row")
    if spec.offload_layers > 0:
        words.need("--n-cpu-moe", value=spec.offload_layers)


def _own_weights(words: Words) -> None:
    """Read the weights instead of mapping the file. llama.cpp keeps a copy of them in the layout that this CPU likes
    best; with a mapping the file's pages would stay resident beside it, and cost twice what the estimate says."""
    if words.taken.isdisjoint(LOAD_OPTIONS) and words.flags.first("--load-mode", "--no-mmap"):
        words.words += translate([("--load-mode", "none")], words.flags)


def _kv_cache(words: Words, spec: LaunchSpec) -> None:
    if spec.kv_quant == "auto":
        return
    kind = KV_TYPES.get(spec.kv_quant)
    if kind is None:
        raise EngineIncompatible(ENGINE, f"kv_quant {spec.kv_quant!r} is not one of auto, {', '.join(KV_TYPES)}")
    words.need("--cache-type-k", value=kind)
    words.need("--cache-type-v", value=kind)
    if kind in _QUANTISED and "--flash-attn" not in words.taken:
        # A quantised V cache works only with flash attention; older builds take the option without a value.
        words.need("--flash-attn", value="on" if "--flash-attn" in words.flags.valued else None)


def _modality(words: Words, spec: LaunchSpec) -> None:
    if spec.modality == "chat":
        words.want("--jinja")
        return
    words.need(*(("--embeddings", "--embedding") if spec.modality == "embedding" else ("--reranking", "--rerank")))
    # An input is encoded in one physical batch, so the batch must hold a whole context.
    batch = min(spec.context_tokens, MAX_EMBEDDING_BATCH)
    words.want("--batch-size", value=batch)
    words.want("--ubatch-size", value=batch)


def _hygiene(words: Words, spec: LaunchSpec) -> None:
    words.want("--no-ui", "--no-webui")
    words.want("--metrics")
    words.want("--slots")
    if not spec.network:
        words.want("--offline")
    words.want("--no-mmproj-auto", "--no-mmproj")
    words.want("--cors-origins", value="localhost")
    words.want("--timeout", value=IO_TIMEOUT_S)
    words.want("--sse-ping-interval", value=SSE_PING_S)
