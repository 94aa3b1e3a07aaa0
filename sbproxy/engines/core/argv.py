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

_KV_TYPES = {"f16": "f16", "fp8": "q8_0", "int8": "q8_0", "int4": "q4_0"}
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


class _Words:
    """Collects words; remembers what the build would have to know and does not."""

    def __init__(self, flags: Flags, taken: frozenset[str]) -> None:
        self.flags = flags
        self.taken = taken
        self.words: list[str] = []
        self.missing: list[str] = []

    def need(self, *names: str, value: str | int | None = None) -> None:
        known = self.flags.first(*names)
        if known is None:
            self.missing.append(names[0])
        else:
            self._say(known, value)

    def want(self, *names: str, value: str | int | None = None) -> None:
        known = self.flags.first(*names)
        # What the operator says in extra_args replaces what we would have said.
        if known is not None and not self.taken.intersection(names):
            self._say(known, value)

    def _say(self, name: str, value: str | int | None) -> None:
        self.words.append(name)
        if value is not None:
            self.words.append(str(value))


def llama_arguments(flags: Flags, spec: LaunchSpec, seat: Seat) -> tuple[str, ...]:
    """Everything after the program's name. The API key itself is only in ``seat.key_file``.

    Raises EngineIncompatible (the build lacks a needed option, or the modality is not llama.cpp's) or UnsafeArgument.
    """
    extra = parse_extra_args(spec.extra_args)
    words = _Words(flags, frozenset(name for name, _ in extra))
    _identity(words, spec, seat)
    _memory(words, spec, seat)
    _modality(words, spec)
    _hygiene(words)
    if words.missing:
        raise EngineIncompatible(
            ENGINE, f"this build of llama-server does not know {', '.join(sorted(words.missing))}; use another build"
        )
    return (*words.words, *translate(extra, flags))


def _identity(words: _Words, spec: LaunchSpec, seat: Seat) -> None:
    words.need("--model", value=str(spec.model_path))
    words.need("--host", value=HOST)
    words.need("--port", value=seat.port)
    words.need("--alias", value=seat.alias)
    words.need("--api-key-file", value=str(seat.key_file))


def _memory(words: _Words, spec: LaunchSpec, seat: Seat) -> None:
    # The pool is divided among the slots, and context_tokens is what each request may use.
    words.need("--ctx-size", value=spec.context_tokens * spec.parallel)
    words.need("--parallel", value=spec.parallel)
    words.want("--no-kv-unified")
    words.want("--fit", value="off")
    words.want("--cache-ram", value=PROMPT_CACHE_MIB)
    words.want("--threads", value=seat.threads)
    if spec.device == "cpu":
        words.need("--gpu-layers", value=0)
        words.want("--device", value="none")
        _own_weights(words)
    else:
        words.need("--gpu-layers", value=999)
        if seat.gpu:
            words.need("--device", value=",".join(seat.gpu))
    _kv_cache(words, spec)


def _own_weights(words: _Words) -> None:
    """Read the weights instead of mapping the file. llama.cpp keeps a copy of them in the layout that this CPU likes
    best; with a mapping the file's pages would stay resident beside it, and cost twice what the estimate says."""
    if words.taken.isdisjoint(LOAD_OPTIONS) and words.flags.first("--load-mode", "--no-mmap"):
        words.words += translate([("--load-mode", "none")], words.flags)


def _kv_cache(words: _Words, spec: LaunchSpec) -> None:
    if spec.kv_quant == "auto":
        return
    kind = _KV_TYPES.get(spec.kv_quant)
    if kind is None:
        raise EngineIncompatible(ENGINE, f"kv_quant {spec.kv_quant!r} is not one of auto, {', '.join(_KV_TYPES)}")
    words.need("--cache-type-k", value=kind)
    words.need("--cache-type-v", value=kind)
    if kind in _QUANTISED and "--flash-attn" not in words.taken:
        # A quantised V cache works only with flash attention; older builds take the option without a value.
        words.need("--flash-attn", value="on" if "--flash-attn" in words.flags.valued else None)


def _modality(words: _Words, spec: LaunchSpec) -> None:
    if spec.modality == "chat":
        words.want("--jinja")
        return
    if spec.modality not in ("embedding", "rerank"):
        raise EngineIncompatible(ENGINE, f"it serves chat, embedding and rerank models, not {spec.modality}")
    words.need(*(("--embeddings", "--embedding") if spec.modality == "embedding" else ("--reranking", "--rerank")))
    # An input is encoded in one physical batch, so the batch must hold a whole context.
    batch = min(spec.context_tokens, MAX_EMBEDDING_BATCH)
    words.want("--batch-size", value=batch)
    words.want("--ubatch-size", value=batch)


def _hygiene(words: _Words) -> None:
    words.want("--no-ui", "--no-webui")
    words.want("--metrics")
    words.want("--slots")
    words.want("--offline")
    words.want("--no-mmproj-auto", "--no-mmproj")
    words.want("--cors-origins", value="localhost")
    words.want("--timeout", value=IO_TIMEOUT_S)
    words.want("--sse-ping-interval", value=SSE_PING_S)
