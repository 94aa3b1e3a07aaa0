"""What a ``config.json`` tells the memory fit (contracts section 15)."""

from __future__ import annotations

import json

import pytest

from sbproxy.modelhost.core.gguf import ModelShape
from sbproxy.modelhost.core.hf_config import ConfigProblem, parse_config

DENSE = {
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
}


def test_a_dense_model() -> None:
    parameters = 151936 * 896 + 24 * (2 * 896**2 + 2 * 896 * 128 + 3 * 896 * 4864)
    assert parse_config(json.dumps(DENSE)) == ModelShape(24, 2, 64, 32768, parameters, None, 4864, 896)


def test_a_mixture_of_experts_and_an_explicit_head_size() -> None:
    told = DENSE | {"num_experts": 8, "moe_intermediate_size": 512, "head_dim": 128}
    shape = parse_config(json.dumps(told))
    assert (shape.experts, shape.expert_feed_forward, shape.head_dim) == (8, 512, 128)
    assert shape.parameters == 151936 * 896 + 24 * (2 * 896**2 + 2 * 896 * 256 + 3 * 896 * 512 * 8)


def test_defaults_and_the_language_part_of_a_larger_model() -> None:
    told = {"text_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}}
    assert parse_config(json.dumps(told)) == ModelShape(2, 4, 16, 8192, None, None, None, 64)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON"),
        ("[]", "no JSON object"),
        ("{}", "num_hidden_layers is missing"),
        (json.dumps(DENSE | {"num_attention_heads": None}), "num_attention_heads is missing"),
        (json.dumps(DENSE | {"num_hidden_layers": -1}), "num_hidden_layers is -1"),
        (json.dumps(DENSE | {"vocab_size": 1 << 60}), "vocab_size is"),
        (json.dumps(DENSE | {"hidden_size": "wide"}), "hidden_size is wide"),
        (json.dumps({k: v for k, v in DENSE.items() if k != "hidden_size"}), "head_dim and hidden_size are missing"),
    ],
)
def test_damaged_and_hostile_documents_are_named(text: str, reason: str) -> None:
    with pytest.raises(ConfigProblem, match=reason):
        parse_config(text)
