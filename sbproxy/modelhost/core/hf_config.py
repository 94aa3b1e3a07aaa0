"""The few facts of a Hugging Face ``config.json`` that a memory estimate needs (contracts section 15). Parses text."""

from __future__ import annotations

import json
from typing import Any

from sbproxy.modelhost.core.gguf import ModelShape

MAX_BYTES = 1 << 20
_MAX_FIGURE = 1 << 48
_DEFAULT_CONTEXT = 8192
_NESTED = ("text_config", "llm_config")
"""Where models of several modalities keep their language model."""


class ConfigProblem(ValueError):
    """The document is not what the format says; the text names the reason."""


def parse_config(text: str) -> ModelShape:
    """The shape that a configuration tells. Raises ConfigProblem."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigProblem(f"it is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigProblem("it is no JSON object")
    for name in _NESTED:
        if isinstance(document.get(name), dict):
            document = document[name]
    layers, heads = _wanted(document, "num_hidden_layers"), _wanted(document, "num_attention_heads")
    hidden = _figure(document, "hidden_size")
    head_dim = _figure(document, "head_dim") or (hidden // heads if hidden else None)
    if not head_dim:
        raise ConfigProblem("head_dim and hidden_size are missing")
    kv_heads = _figure(document, "num_key_value_heads") or heads
    experts = _figure(document, "num_local_experts") or _figure(document, "num_experts")
    return ModelShape(
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=_figure(document, "max_position_embeddings") or _DEFAULT_CONTEXT,
        parameters=_parameters(document, layers, hidden, kv_heads * head_dim, experts),
        experts=experts,
        expert_feed_forward=_figure(document, "moe_intermediate_size") or _figure(document, "intermediate_size"),
        hidden=hidden,
    )


def _parameters(
    document: dict[str, Any], layers: int, hidden: int | None, kv_dim: int, experts: int | None
) -> int | None:
    """An estimate from the sizes of the matrices; None when one of them is not told."""
    vocabulary = _figure(document, "vocab_size")
    ffn = (_figure(document, "moe_intermediate_size") if experts else None) or _figure(document, "intermediate_size")
    if not (hidden and vocabulary and ffn):
        return None
    block = 2 * hidden**2 + 2 * hidden * kv_dim + 3 * hidden * ffn * (experts or 1)
    return vocabulary * hidden + layers * block


def _wanted(document: dict[str, Any], key: str) -> int:
    value = _figure(document, key)
    if value is None:
        raise ConfigProblem(f"{key} is missing")
    return value


def _figure(document: dict[str, Any], key: str) -> int | None:
    value = document.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _MAX_FIGURE:
        raise ConfigProblem(f"{key} is {str(value)[:40]}")
    return value
