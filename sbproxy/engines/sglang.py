"""SGLang as a dialect of the Python engines: safetensors models on CUDA devices. It is a module, not a program, so
that ``engines.sglang.path`` names the Python that has it. Document 1, "SGLang".
"""

from __future__ import annotations

from sbproxy.engines.core import sglang_argv
from sbproxy.engines.dialect import Dialect

SGLANG = Dialect(
    engine=sglang_argv.ENGINE,
    program="python",
    entrypoint="python3",
    distributions=("sglang",),
    devices=frozenset({"cuda"}),
    help_words=sglang_argv.HELP_WORDS,
    required=sglang_argv.REQUIRED,
    key_variable=sglang_argv.KEY_VARIABLE,
    kv_runs=sglang_argv.KV_RUNS,
    arguments=sglang_argv.sglang_arguments,
    environment=sglang_argv.sglang_environment,
)
