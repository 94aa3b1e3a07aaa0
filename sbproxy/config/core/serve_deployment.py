"""What one entry of a ``serve:`` block becomes: a deployment under a deterministic id (contracts section 14)."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.config.core.serve import RawReference, ServeModelConfig, duration_seconds

DIGITS: Final = 16

_SAME_NAME: Final = (
    "variant",
    "engine",
    "modality",
    "max_context",
    "kv_quant",
    "enable_prefix_caching",
    "pinned",
    "extra_args",
    "tool_call_parser",
    "swap_space_gib",
    "cpu_offload_gib",
    "reference",
)


def deployment_of(entry: ServeModelConfig) -> DeploymentConfig:
    """The canonical form of ``entry``, without what its host policy adds."""
    written: dict[str, Any] = {name: getattr(entry, name) for name in _SAME_NAME if name in entry.model_fields_set}
    raw = entry.raw
    written["model"] = entry.model if raw is None else raw_model_id(raw, entry)
    if raw is not None and entry.engine == "auto":
        # Nothing but the reference tells the engine, so the choice is part of what was said.
        written["engine"] = "llama_cpp" if gguf(raw, entry) else "vllm"
    if entry.keep_alive is not None:
        written["keep_alive_secs"] = duration_seconds(entry.keep_alive)
    return DeploymentConfig.model_validate(written)


def deployment_id(provider: str, entry: ServeModelConfig) -> str:
    """Equal for equivalent entries of providers of one name, wherever they stand: defaults and spelling do not count,
    nor does what the host policy says."""
    entry_facts = deployment_of(entry).model_dump(mode="json", exclude_defaults=True)
    return f"serve-{_digest({'provider': provider, 'name': entry.public_name, 'entry': entry_facts})}"


def raw_model_id(raw: RawReference, entry: ServeModelConfig) -> str:
    """Id of the stand-in that the catalog gets for a raw reference; other facts make another stand-in."""
    return f"raw-{_digest([raw.kind, raw.location, raw.quant, entry.gguf_file, gguf(raw, entry), entry.modality])}"


def gguf(raw: RawReference, entry: ServeModelConfig) -> bool:
    """Whether a raw reference means a GGUF file: it says so, or llama.cpp, which runs nothing else, was asked for."""
    named = raw.kind == "file" or raw.quant is not None or entry.gguf_file is not None
    return named or "gguf" in raw.location.lower() or entry.engine == "llama_cpp"


def _digest(facts: Any) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
