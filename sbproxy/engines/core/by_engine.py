"""What each engine takes: the published list of its ``extra_args``, and the deployment settings that it has."""

from __future__ import annotations

from collections.abc import Mapping

from sbproxy.engines.core import argv, mistralrs_argv, sglang_argv, vllm_argv
from sbproxy.engines.core.allow_list import AllowList
from sbproxy.engines.core.extra_args import LLAMA_CPP

_LISTS = (LLAMA_CPP, vllm_argv.ALLOW_LIST, sglang_argv.ALLOW_LIST, mistralrs_argv.ALLOW_LIST)

ALLOW_LISTS: Mapping[str, AllowList] = {each.engine: each for each in _LISTS}

SETTINGS: Mapping[str, frozenset[str]] = {
    LLAMA_CPP.engine: argv.SETTINGS,
    vllm_argv.ENGINE: vllm_argv.SETTINGS,
    sglang_argv.ENGINE: sglang_argv.SETTINGS,
    mistralrs_argv.ENGINE: mistralrs_argv.SETTINGS,
}
"""Of the settings that not every engine has (``core.settings``), those of each engine."""
