"""The published list of ``extra_args`` of each engine, by the engine's name."""

from __future__ import annotations

from collections.abc import Mapping

from sbproxy.engines.core import mistralrs_argv, sglang_argv, vllm_argv
from sbproxy.engines.core.allow_list import AllowList
from sbproxy.engines.core.extra_args import LLAMA_CPP

_LISTS = (LLAMA_CPP, vllm_argv.ALLOW_LIST, sglang_argv.ALLOW_LIST, mistralrs_argv.ALLOW_LIST)

ALLOW_LISTS: Mapping[str, AllowList] = {each.engine: each for each in _LISTS}
