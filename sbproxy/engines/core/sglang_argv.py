"""The command line of one SGLang server, as a pure function of the build's options and the launch spec.

SGLang takes its API key from the command line alone, where every user of the machine could read it. ``LAUNCHER``
therefore hands the key over inside the process: it is ``python -m sglang.launch_server`` with one more argument.
"""

from __future__ import annotations

from sbproxy.engines.core.allow_list import AllowList
from sbproxy.engines.core.flags import Flags
from sbproxy.engines.core.model import LaunchSpec
from sbproxy.engines.core.server_seat import ServerSeat
from sbproxy.engines.core.settings import memory_utilisation, refuse_modality, refuse_settings
from sbproxy.engines.core.vllm_argv import plain_word
from sbproxy.engines.core.words import Words
from sbproxy.errors.engines import EngineIncompatible

ENGINE = "sglang"
MODULE = "sglang.launch_server"
KEY_VARIABLE = "SBPROXY_ENGINE_KEY"
HELP_WORDS: tuple[tuple[str, ...], ...] = (("-m", MODULE, "--help"),)
REQUIRED = ("--model-path", "--host", "--port", "--served-model-name", "--context-length", "--max-running-requests")

LAUNCHER = (
    "import os, runpy, sys; "
    f"key = os.environ.pop({KEY_VARIABLE!r}); "
    f"sys.argv = [{MODULE!r}, *sys.argv[1:], '--api-key=' + key]; "
    f"runpy.run_module({MODULE!r}, run_name='__main__')"
)
"""Given to ``python -c``, so that the processes which SGLang spawns import no main module of ours again."""

SETTINGS = frozenset({"tool_call_parser", "cpu_offload_gib", "chunked_prefill", "tensor_parallel"})
KV_RUNS = {"fp8": "fp8_e5m2", "int8": "fp8_e5m2", "int4": "fp8_e5m2"}
"""``kv_quant`` to what it runs as: the type that needs no scaling factors with the weights."""

ALLOW_LIST = AllowList(
    ENGINE,
    allowed={
        "--disable-radix-cache": False,
        "--enable-torch-compile": False,
        "--mem-fraction-static": True,
        "--schedule-conservativeness": True,
    },
    owned=(
        ("the model", ("model.*", "served-model-name", "tokenizer.*", "revision", "lora-.*", "quantization", "dtype")),
        ("the model", ("load-format", "is-embedding", "json-model-override-args", "config")),
        ("the address and the network", ("host", "port", "nccl-port", "dist-.*", "nnodes", "node-rank", "ssl-.*")),
        ("access to the engine", ("api-key", "admin-api-key", "file-storage-.*", "enable-metrics.*")),
        ("foreign code", ("trust-remote-code", "custom-.*", "forward-hooks")),
        ("the device", ("device", "base-gpu-id", "gpu-id-step", "tp(-size)?", "tensor-parallel-size", "dp(-size)?")),
        ("the device", ("pp(-size)?", "ep(-size)?", "data-parallel-size")),
        ("the memory plan", ("context-length", "max-running-requests", "max-total-tokens", "kv-cache-dtype")),
        ("the memory plan", ("chunked-prefill-size", "max-prefill-tokens", "cpu-offload-gb", "page-size")),
        ("the tool parser", ("tool-call-parser",)),
        ("the engine's life", ("log-.*", "watchdog-timeout", "crash-dump-folder", "warmups", "skip-server-warmup")),
    ),
)
"""Document 1, "SGLang": the stable list."""


def sglang_arguments(flags: Flags, spec: LaunchSpec, seat: ServerSeat) -> tuple[str, ...]:
    """Everything after the interpreter's name. Raises EngineIncompatible or UnsafeArgument."""
    refuse_settings(ENGINE, spec, SETTINGS)
    refuse_modality(ENGINE, spec)
    if spec.device != "cuda":
        raise EngineIncompatible(ENGINE, f"it runs on CUDA devices alone, the plan uses {spec.device}")
    extra = ALLOW_LIST.parse(spec.extra_args)
    words = Words(flags, frozenset(name for name, _ in extra))
    words.need("--model-path", value=seat.model)
    words.need("--host", value=seat.host)
    words.need("--port", value=seat.port)
    words.need("--served-model-name", value=seat.alias)
    _memory(words, spec)
    if spec.max_batched_tokens is not None:
        words.need("--chunked-prefill-size", value=spec.max_batched_tokens)
    if spec.tool_call_parser is not None:
        words.need("--tool-call-parser", value=plain_word(ENGINE, "tool_call_parser", spec.tool_call_parser))
    if spec.modality != "chat":
        words.need("--is-embedding")
    for name, value in extra:
        words.need(name, value=value)
    words.check(ENGINE, ENGINE)
    return ("-c", LAUNCHER, *words.words)


def sglang_environment(spec: LaunchSpec) -> dict[str, str]:
    """Variables of this launch; offline unless it serves a repository that it fetches itself."""
    said = {"DO_NOT_TRACK": "1"}
    if not spec.network:
        said |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return said


def _memory(words: Words, spec: LaunchSpec) -> None:
    words.need("--context-length", value=spec.context_tokens)
    words.need("--max-running-requests", value=spec.parallel)
    if spec.tensor_parallel > 1:
        words.need("--tp-size", "--tensor-parallel-size", value=spec.tensor_parallel)
    share = memory_utilisation(spec)
    if share is not None:
        words.want("--mem-fraction-static", value=share)
    # What the plan's requests need at most; without it the cache takes all that the share leaves.
    words.want("--max-total-tokens", value=spec.context_tokens * spec.parallel)
    if spec.kv_quant in KV_RUNS:
        words.need("--kv-cache-dtype", value=KV_RUNS[spec.kv_quant])
    if spec.cpu_offload_gib:
        words.need("--cpu-offload-gb", value=spec.cpu_offload_gib)
