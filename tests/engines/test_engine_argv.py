"""The command line of llama-server, for two builds that differ."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.engines.core.argv import KV_SUBSTITUTES, PROMPT_CACHE_MIB, REQUIRED, Seat, llama_arguments
from sbproxy.engines.core.extra_args import ALLOWED, SHORT, parse_extra_args, translate
from sbproxy.engines.core.flags import Flags
from sbproxy.engines.core.model import LaunchSpec
from sbproxy.engines.core.settings import substituted
from sbproxy.errors.engines import EngineIncompatible, UnsafeArgument
from support.fake_llama_server import known_flags

NEVER = {"--props", "--tools", "--agent", "--mcp-servers-config", "--media-path", "--reuse-port", "--api-key", "-hf"}


def build(name: str, *without: str) -> Flags:
    rows = known_flags(name, list(without))
    return Flags(
        names=frozenset(alias for names, _ in rows for alias in names),
        valued=frozenset(alias for names, takes in rows if takes for alias in names),
    )


OLD, NEW = build("b10434"), build("b11434")
REFUSED = """
--model -m --model=/x --host --port=1 -hf --hf-repo --api-key --api-key=s3cret --props --tools --agent --rpc
--alias -a -ngl --device --ctx-size -c --parallel -np --cache-ram --lora --mmproj --offline --log-file --slot-
save-path --media-path --sleep-idle-seconds --reuse-port --ssl-key-file --bogus x --ui-mcp-proxy --override-
tensor --models-dir --cache-type-k --embeddings --no-ui --path
"""
SEAT = Seat(port=4711, alias="m-1", key_file=Path("/run/x/key"), threads=3)
SPEC = LaunchSpec("chat", 7, Path("/models/a.gguf"), context_tokens=2048, parallel=4)


def argv(flags: Flags = OLD, seat: Seat = SEAT, **changes: Any) -> list[str]:
    return list(llama_arguments(flags, dataclasses.replace(SPEC, **changes), seat))


def value(words: list[str], name: str) -> str:
    assert words.count(name) == 1, (name, words)
    return words[words.index(name) + 1]


def test_identity_and_address() -> None:
    words = argv()
    assert value(words, "--model") == "/models/a.gguf"
    assert value(words, "--host") == "127.0.0.1"
    assert value(words, "--port") == "4711"
    assert value(words, "--alias") == "m-1"
    assert value(words, "--api-key-file") == "/run/x/key"


def test_the_context_is_per_request_so_the_pool_is_its_multiple() -> None:
    words = argv()
    assert value(words, "--ctx-size") == str(2048 * 4)
    assert value(words, "--parallel") == "4"
    assert "--no-kv-unified" in words


def test_prompt_cache_is_bounded_and_threads_are_said() -> None:
    words = argv()
    assert value(words, "--cache-ram") == str(PROMPT_CACHE_MIB)
    assert value(words, "--threads") == "3"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (NEW, ["--load-mode", "none"]),
        (OLD, ["--load-mode", "none"]),
        (build("b10434", "--load-mode"), ["--no-mmap"]),
        (build("b10434", "--load-mode", "--no-mmap", "--mmap"), []),
    ],
)
def test_weights_on_the_cpu_are_held_once(flags: Flags, said: list[str]) -> None:
    told = {"--load-mode", "none", "--no-mmap", "--mmap", "--mlock"}
    assert [word for word in argv(flags) if word in told and word != "none"] == said[:1]
    assert said == [] or said == argv(flags)[argv(flags).index(said[0]) :][: len(said)]
    assert not told.intersection(argv(flags, device="cuda"))


@pytest.mark.parametrize("extra", [("--mmap",), ("--mlock",), ("--load-mode", "mmap"), ("-lm", "dio")])
def test_an_operators_way_to_load_replaces_ours(extra: tuple[str, ...]) -> None:
    words = argv(NEW, extra_args=extra)
    assert value(words, "--load-mode") != "none"


def test_hygiene() -> None:
    words = argv()
    assert {"--no-ui", "--metrics", "--slots", "--offline", "--no-mmproj-auto", "--jinja"} <= set(words)
    assert value(words, "--cors-origins") == "localhost"
    assert value(words, "--sse-ping-interval") == "15"
    assert not NEVER & set(words)


def test_a_build_that_says_webui() -> None:
    words = argv(build("b10434", "--no-ui", "--ui", "--offline"))
    assert "--no-webui" in words
    assert "--no-ui" not in words
    assert "--offline" not in words


@pytest.mark.parametrize("name", REQUIRED)
def test_a_required_option_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(EngineIncompatible, match=name):
        argv(build("b10434", name))


def test_cpu_offloads_nothing_cuda_and_metal_everything() -> None:
    cpu = argv()
    assert value(cpu, "--gpu-layers") == "0"
    assert value(cpu, "--device") == "none"
    assert value(argv(device="metal"), "--gpu-layers") == "999"
    cuda = argv(device="cuda", device_indexes=(1,))
    assert value(cuda, "--gpu-layers") == "999"
    assert "--device" not in cuda
    assert value(argv(device="cuda", seat=dataclasses.replace(SEAT, gpu=("Vulkan0",))), "--device") == "Vulkan0"


@pytest.mark.parametrize(("asked", "said"), [("int8", "q8_0"), ("int4", "q4_0"), ("fp8", "q8_0"), ("f16", "f16")])
def test_kv_quant(asked: str, said: str) -> None:
    words = argv(kv_quant=asked)
    assert value(words, "--cache-type-k") == said
    assert value(words, "--cache-type-v") == said
    assert ("--flash-attn" in words) == (said != "f16")


def test_kv_quant_auto_says_nothing() -> None:
    assert not {"--cache-type-k", "--cache-type-v", "--flash-attn"} & set(argv())


def test_flash_attention_has_a_value_where_the_build_wants_one() -> None:
    assert value(argv(kv_quant="int8"), "--flash-attn") == "on"
    bare = Flags(OLD.names, OLD.valued - {"--flash-attn", "-fa"})
    words = argv(bare, kv_quant="int8")
    assert words[words.index("--flash-attn") + 1].startswith("--")
    with pytest.raises(EngineIncompatible, match="--flash-attn"):
        argv(build("b10434", "--flash-attn", "-fa"), kv_quant="int4")


def test_modalities() -> None:
    embedding = argv(modality="embedding")
    assert "--embeddings" in embedding
    assert value(embedding, "--ubatch-size") == "2048"
    assert "--jinja" not in embedding
    assert "--reranking" in argv(modality="rerank")
    assert "--embedding" in argv(build("b10434", "--embeddings"), modality="embedding")
    with pytest.raises(EngineIncompatible, match="image"):
        argv(modality="image")


def test_extra_args_replace_what_we_would_say() -> None:
    words = argv(extra_args=("-t", "1", "--ubatch-size=256"))
    assert value(words, "--threads") == "1"
    assert value(words, "--ubatch-size") == "256"


@pytest.mark.parametrize(
    ("flags", "given", "said"),
    [
        (NEW, ("--no-mmap",), ("--load-mode", "none")),
        (NEW, ("--mmap",), ("--load-mode", "mmap")),
        (NEW, ("--mlock",), ("--load-mode", "mmap+mlock")),
        (OLD, ("--no-mmap",), ("--no-mmap",)),
        (OLD, ("-lm", "none"), ("--load-mode", "none")),
        (build("b10434", "--load-mode", "-lm"), ("--load-mode=none",), ("--no-mmap",)),
        (build("b10434", "--load-mode", "-lm"), ("--load-mode", "mlock"), ("--no-mmap", "--mlock")),
        (build("b10434", "--load-mode", "-lm"), ("--load-mode", "auto"), ()),
    ],
)
def test_loading_is_said_as_the_build_says_it(flags: Flags, given: tuple[str, ...], said: tuple[str, ...]) -> None:
    assert translate(parse_extra_args(given), flags) == said


def test_a_way_of_loading_that_the_build_does_not_have() -> None:
    with pytest.raises(EngineIncompatible, match="--direct-io"):
        translate(parse_extra_args(("--load-mode", "dio")), build("b10434", "--load-mode", "-lm"))
    with pytest.raises(UnsafeArgument, match="not one of"):
        translate(parse_extra_args(("--load-mode", "magic")), build("b10434", "--load-mode", "-lm"))


def test_an_allowed_option_that_this_build_lacks() -> None:
    with pytest.raises(EngineIncompatible, match="--numa"):
        argv(build("b10434", "--numa"), extra_args=("--numa", "isolate"))


@pytest.mark.parametrize(
    "word",
    REFUSED.split(),
)
def test_what_the_model_host_owns_is_refused(word: str) -> None:
    with pytest.raises(UnsafeArgument) as caught:
        argv(extra_args=(word, "1"))
    assert "s3cret" not in str(caught.value)
    assert word.partition("=")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("--threads",), "missing"),
        (("--threads", "1", "-t", "2"), "twice"),
        (("--threads", "/etc/passwd"), "only hold"),
        (("--threads", ""), "only hold"),
        (("--threads=",), "only hold"),
        (("--pooling", "--props"), "only hold"),
        (("--check-tensors=1",), "no value"),
    ],
)
def test_malformed_extra_args(given: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UnsafeArgument, match=reason):
        argv(extra_args=given)


def test_short_names_stand_for_allowed_ones() -> None:
    assert set(SHORT.values()) <= set(ALLOWED)


@given(st.lists(st.text(max_size=24), max_size=4))
def test_no_extra_args_ever_say_what_is_not_allowed(words: list[str]) -> None:
    try:
        said = translate(parse_extra_args(tuple(words)), NEW)
    except (UnsafeArgument, EngineIncompatible):
        return
    assert {word for word in said if word.startswith("--")} <= set(ALLOWED)


def test_a_step_on_the_cpu_is_short_so_that_a_cancelled_prompt_gives_its_slot_back_soon() -> None:
    words = argv()
    assert value(words, "--batch-size") == value(words, "--ubatch-size") == "256"
    assert not {"--batch-size", "--ubatch-size"} & set(argv(device="cuda"))
    assert value(argv(extra_args=("--batch-size", "1024")), "--batch-size") == "1024"


def test_expert_layers_in_cpu_memory_and_rows_over_several_cards() -> None:
    more = Flags(NEW.names | {"--n-cpu-moe", "--split-mode"}, NEW.valued | {"--n-cpu-moe", "--split-mode"})
    words = argv(more, device="cuda", offload_layers=5, tensor_parallel=2)
    assert value(words, "--n-cpu-moe") == "5"
    assert value(words, "--split-mode") == "row"
    with pytest.raises(EngineIncompatible, match=r"--n-cpu-moe, --split-mode"):
        argv(build("b10434"), device="cuda", offload_layers=5, tensor_parallel=2)
    with pytest.raises(EngineIncompatible, match="tensor_parallel is for several GPUs"):
        argv(tensor_parallel=2)


@pytest.mark.parametrize(("asked", "runs"), [("fp8", "q8_0"), ("int8", None), ("int4", None), ("f16", None)])
def test_only_fp8_is_another_type_than_the_one_asked_for(asked: str, runs: str | None) -> None:
    assert substituted(dataclasses.replace(SPEC, kv_quant=asked), KV_SUBSTITUTES) == runs
