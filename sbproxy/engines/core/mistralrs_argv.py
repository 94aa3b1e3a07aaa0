"""The command line of one ``mistralrs serve``, as a pure function of the build's options and the launch spec.

It serves safetensors snapshots for chat. No KV type is ever said (``kv_quant`` buys nothing here) and no tool parser:
tool calls are native to the server. Document 1, "mistral.rs".
"""

from __future__ import annotations

import re

from sbproxy.engines.core.allow_list import AllowList
from sbproxy.engines.core.flags import Flags
from sbproxy.engines.core.model import LaunchSpec
from sbproxy.engines.core.settings import refuse_settings
from sbproxy.engines.core.words import Words
from sbproxy.errors.engines import EngineIncompatible

ENGINE = "mistralrs"
HOST = "127.0.0.1"
SERVE = "serve"

REQUIRED = ("-m", "--host", "--port", "--max-seq-len", "--max-seqs", "--cpu")
"""Options that belong to the runtime; a build of ``serve`` that lacks one is no engine for us."""

KV_RUNS = {"fp8": "f16", "int8": "f16", "int4": "f16"}
"""``kv_quant`` to what it runs as: there is no option for it."""

SETTINGS = frozenset({"tensor_parallel"})
"""It splits a model over the devices that it sees without being told."""

ALLOW_LIST = AllowList(
    ENGINE,
    allowed={"--no-kv-cache": False, "--prefix-cache-n": True},
    owned=(
        (
            "the model",
            ("m", "model-id", "t", "tokenizer", "f", "quantized-file", "format", "from-uqff", "(x|legacy-)?lora.*"),
        ),
        ("the address and the network", ("host", "p", "port", "token-source", "mcp-.*", "(no-)?ui")),
        ("the device", ("cpu", "n", "device-layers", "topology")),
        ("the memory plan", ("max-seq-len", "max-seqs", "max-batch-size", "pa-.*", "paged-attn")),
        ("foreign code", ("agent.*", "enable-.*", "code-exec-.*", "shell-.*", "skills-dir")),
    ),
)
"""Document 1's stable list."""

# The help of a clap program: a short name or its width in spaces, the long name, then the value in angle brackets.
_OPTION_LINE = re.compile(r" {2,6}(?:(-[A-Za-z])(?:, )?)?(--[a-z][a-z0-9-]*)?(?:(?:\[=| )<|$| )")
_VALUED = re.compile(r" {2,6}(?:-[A-Za-z],? ?)?(?:--[a-z][a-z0-9-]*)?(?:\[=| )<")
_VERSION = re.compile(r"^mistralrs v?([0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.]+)?)", re.MULTILINE)


def parse_serve_help(text: str) -> Flags:
    """The options of ``mistralrs serve --help``."""
    names: set[str] = set()
    valued: set[str] = set()
    for line in text.splitlines():
        match = _OPTION_LINE.match(line)
        found = {name for name in match.groups() if name} if match else set()
        names |= found
        if found and _VALUED.match(line):
            valued |= found
    return Flags(frozenset(names), frozenset(valued))


def release_of(output: str) -> str | None:
    """``v0.9.0`` from what ``mistralrs --version`` prints; None when it says no release."""
    match = _VERSION.search(output)
    return f"v{match[1]}" if match else None


def serve_arguments(flags: Flags, spec: LaunchSpec, *, port: int, model: str) -> tuple[str, ...]:
    """Everything after the program's name. ``model`` is a path, and the id under which the server lists it.

    Raises EngineIncompatible (a setting, task or option that it or this build does not have) or UnsafeArgument.
    """
    refuse_settings(ENGINE, spec, SETTINGS)
    if spec.modality != "chat":
        raise EngineIncompatible(ENGINE, f"it serves chat models here, not {spec.modality}; use llama_cpp or vllm")
    if spec.repository is not None:
        raise EngineIncompatible(ENGINE, "it serves verified snapshots alone, no raw model reference; use vllm")
    extra = ALLOW_LIST.parse(spec.extra_args)
    words = Words(flags)
    words.need("-m", value=model)
    words.need("--host", value=HOST)
    words.need("--port", value=port)
    words.need("--max-seq-len", value=spec.context_tokens)
    words.need("--max-seqs", value=spec.parallel)
    if spec.device == "cpu":
        words.need("--cpu")
    words.want("--no-ui")
    words.want("--token-source", value="none")
    if spec.device == "cuda":
        # Its paged cache takes nine tenths of the free memory unless it is told how many tokens to hold.
        words.want("--pa-context-len", value=spec.context_tokens * spec.parallel)
    for name, value in extra:
        words.need(name, value=value)
    words.check(ENGINE, "mistralrs serve")
    return (SERVE, *words.words)
