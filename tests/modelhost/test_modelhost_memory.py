"""Memory fit (contracts section 15) and GGUF headers."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.catalog.core.model import Attention, ModelId, ResolvedArtifact, WorkerFacts
from sbproxy.catalog.core.resolve import resolve
from sbproxy.catalog.document import builtin_catalog
from sbproxy.config.core.model_host import DeploymentConfig
from sbproxy.devices.core.model import Device
from sbproxy.modelhost.core.gguf import GgufProblem, HeaderShort, ModelShape, parse_shape
from sbproxy.modelhost.core.memory_fit import (
    Demand,
    classify,
    context_tokens,
    estimate,
    kv_bytes_per_element,
    weight_bytes,
)
from sbproxy.modelhost.demand import demand_of
from sbproxy.modelhost.model_shape import read_shape
from support.model_host_parts import LLAMA, MIB, gguf, model
from support.real_parts import real_model_path

CPU = Device(-1, "cpu", "system memory", 1000 * MIB, 900 * MIB)
SHAPE = ModelShape(layers=24, kv_heads=2, head_dim=64, context_length=32768)


def demand(**changes: object) -> Demand:
    values: dict[str, object] = {
        "weight_bytes": 491_400_032,
        "weight_class": "q4",
        "context_tokens": 4096,
        "concurrency": 4,
        "modality": "chat",
        "engine": "llama_cpp",
        "kv_quant": "auto",
        "shape": SHAPE,
    }
    return Demand(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("quant", "expected"),
    [
        ("Q4_K_M", "q4"), ("q4_1", "q4"), ("AWQ", "q4"), ("gptq-int4", "q4"), ("W4-INT4", "q4"), ("Q5_K_S", "q5"),
        ("Q8_0", "q8"), ("w8a8-int8", "q8"), ("FP8", "fp8"), ("q4-fp8", "fp8"), ("BF16", "f16"), ("F16", "f16"),
        ("Q6_K", "f16"),
    ],
)  # fmt: skip
def test_weight_class_by_name(quant: str, expected: str) -> None:
    assert classify(quant) == expected


def test_the_terms_of_the_formula_each_truncated() -> None:
    need = estimate(demand(), (), 0.10)
    weights, kv = 491_400_032, 2 * 24 * 2 * 64 * 2 * 4096 * 4
    overhead = (weights + kv) * (1.15 - 1)
    assert need.weight_bytes == weights
    assert need.kv_bytes == kv == 201_326_592
    assert need.runtime_overhead_bytes == int(overhead) == 103_908_993
    assert need.safety_margin_bytes == int((weights + kv + overhead) * 0.10)
    assert need.total_bytes == weights + kv + need.runtime_overhead_bytes + need.safety_margin_bytes


def test_tensor_parallel_divides_weights_and_cache() -> None:
    assert estimate(demand(tensor_parallel=2), (0, 1), 0).weight_bytes == 491_400_032 // 2
    assert estimate(demand(tensor_parallel=2), (0, 1), 0).kv_bytes == 201_326_592 // 2


@pytest.mark.parametrize("change", [{"modality": "embedding"}, {"shape": None}])
def test_no_cache_term_without_chat_or_shape(change: dict[str, object]) -> None:
    assert estimate(demand(**change), (), 0.1).kv_bytes == 0


@pytest.mark.parametrize(
    ("engine", "kv_quant", "weights", "expected"),
    [
        ("llama_cpp", "auto", "q4", 2.0), ("llama_cpp", "auto", "fp8", 1.0), ("llama_cpp", "int8", "q4", 1.0),
        ("llama_cpp", "int4", "q4", 0.5), ("vllm", "int4", "f16", 1.0), ("sglang", "int8", "f16", 1.0),
        ("vllm", "fp8", "f16", 1.0), ("vllm", "f16", "fp8", 2.0), ("mistralrs", "int4", "f16", 2.0),
    ],
)  # fmt: skip
def test_bytes_per_cache_element(engine: str, kv_quant: str, weights: str, expected: float) -> None:
    assert kv_bytes_per_element(engine, kv_quant, weights) == expected  # type: ignore[arg-type]


def test_context_rules() -> None:
    assert context_tokens(512, 8192, SHAPE) == 512
    assert context_tokens(None, 8192, SHAPE) == 8192
    assert context_tokens(None, None, SHAPE) == 32768
    assert context_tokens(None, None, None) == 1
    assert context_tokens(100_000, None, SHAPE) == 32768
    assert context_tokens(100_000, 8192, None) == 100_000


def test_weights_are_the_exact_files_where_they_are_known() -> None:
    assert weight_bytes(model("m", 77).variants[0], "135M") == 77
    no_files = replace(model("m").variants[0], files=())
    assert weight_bytes(no_files, "0.5B") == int(500_000_000 * 0.56)
    assert weight_bytes(no_files, "0.5B", ModelShape(1, 1, 1, parameters=494_032_768)) == int(494_032_768 * 0.56)


# --- before the file is here ------------------------------------------------------------------------------------------


def resolved(name: str) -> ResolvedArtifact:
    worker = WorkerFacts(frozenset({"cpu"}), frozenset({"llama_cpp"}))
    return resolve(builtin_catalog(), name, None, worker)


@pytest.mark.parametrize(("free_gib", "fits"), [(24, False), (26, False), (27, True)])
def test_a_large_context_is_counted_before_the_file_is_here(free_gib: int, fits: bool) -> None:
    """llama-3.1-8b keeps 128 KiB of cache a token: 16 GiB at its full context, three times its weights."""
    artifact = resolved("llama-3.1-8b-instruct")
    wanted = demand_of(artifact, DeploymentConfig(model="llama-3.1-8b-instruct"), None)
    need = estimate(wanted, (), 0.10)
    assert need.kv_bytes == 131_072 * 128 * 1024
    assert (need.total_bytes <= free_gib << 30) == fits


def test_the_header_of_the_file_wins_over_the_catalog() -> None:
    artifact, config = resolved("llama-3.1-8b-instruct"), DeploymentConfig(model="llama-3.1-8b-instruct")
    header = ModelShape(layers=2, kv_heads=1, head_dim=64, context_length=4096)
    found = demand_of(artifact, config, header)
    assert (found.shape, found.context_tokens) == (header, 4096)
    assert demand_of(artifact, config, None).context_tokens == 131_072


@pytest.mark.real_engine
def test_the_catalog_counts_a_real_file_as_its_header_does() -> None:
    header = read_shape(real_model_path())
    told = builtin_catalog().models[ModelId("smollm2-135m-instruct")]
    assert told.attention == Attention(header.layers, header.kv_heads, header.head_dim)
    assert told.context_length == header.context_length


# --- GGUF headers -----------------------------------------------------------------------------------------------------


def test_a_header_tells_the_shape() -> None:
    assert parse_shape(LLAMA) == ModelShape(10, 2, 64, 4096, hidden=512)


def test_optional_keys_and_lists() -> None:
    data = gguf(
        general__architecture="moe",
        general__parameter_count=7,
        moe__block_count=3,
        moe__attention__head_count=(4, 8, 4),
        moe__attention__key_length=96,
        moe__embedding_length=512,
        moe__expert_count=16,
        moe__expert_feed_forward_length=128,
    )
    assert parse_shape(data) == ModelShape(3, 8, 96, None, 7, 16, 128, 512)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04" + bytes(20), "not a GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "beyond"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 70_000), "70000 metadata pairs"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 20), "a key of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 99), "type 99"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 9, 2),
            "an array of value type 9",
        ),
        (gguf(general__architecture="llama"), "llama.block_count is missing"),
        (gguf(llama__block_count=1), "general.architecture is missing"),
        (gguf(general__architecture="x", x__block_count=2), "head_count"),
    ],
)
def test_damaged_and_hostile_headers_are_named(data: bytes, reason: str) -> None:
    with pytest.raises(GgufProblem, match=reason):
        parse_shape(data)


@given(st.integers(0, len(LLAMA) - 1))
def test_a_cut_header_is_short_and_never_a_crash(length: int) -> None:
    vocabulary = LLAMA.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens")
    if length < vocabulary:
        with pytest.raises(HeaderShort):
            parse_shape(LLAMA[:length])
    else:
        assert parse_shape(LLAMA[:length]).layers == 10


@given(st.binary(max_size=300))
def test_noise_behind_the_magic_is_a_problem_or_a_shape(noise: bytes) -> None:
    with contextlib.suppress(GgufProblem):
        parse_shape(b"GGUF" + struct.pack("<I", 3) + noise)


def test_reading_grows_until_the_header_is_whole(tmp_path: Path) -> None:
    big = gguf(general__architecture="llama", general__notes="x" * 200_000, llama__block_count=4,
               llama__attention__head_count=2, llama__embedding_length=64)  # fmt: skip
    path = tmp_path / "m.gguf"
    path.write_bytes(big)
    assert read_shape(path).layers == 4
    path.write_bytes(big[:150_000])
    with pytest.raises(HeaderShort, match="ends inside"):
        read_shape(path)
