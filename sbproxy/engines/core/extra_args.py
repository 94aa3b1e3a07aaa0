"""Which ``extra_args`` an operator may give llama.cpp, and how they are said to the build at hand.

``ALLOWED`` is the published list (contracts section 45 leaves it to us): tuning that neither names a file nor an
address, nor changes what the model host planned (model, context, slots, device, identity, lifecycle).
"""

from __future__ import annotations

from sbproxy.engines.core.allow_list import AllowList
from sbproxy.engines.core.flags import Flags
from sbproxy.errors.engines import EngineIncompatible, UnsafeArgument

ENGINE = "llama_cpp"

ALLOWED: dict[str, bool] = {
    "--batch-size": True,
    "--cache-prompt": False,
    "--cache-reuse": True,
    "--check-tensors": False,
    "--cont-batching": False,
    "--context-shift": False,
    "--flash-attn": True,
    "--load-mode": True,
    "--mlock": False,
    "--mmap": False,
    "--no-cache-prompt": False,
    "--no-cont-batching": False,
    "--no-context-shift": False,
    "--no-mmap": False,
    "--no-op-offload": False,
    "--no-repack": False,
    "--no-warmup": False,
    "--numa": True,
    "--op-offload": False,
    "--poll": True,
    "--pooling": True,
    "--prio": True,
    "--reasoning-budget": True,
    "--reasoning-format": True,
    "--repack": False,
    "--rope-freq-base": True,
    "--rope-freq-scale": True,
    "--rope-scale": True,
    "--rope-scaling": True,
    "--slot-prompt-similarity": True,
    "--threads": True,
    "--threads-batch": True,
    "--ubatch-size": True,
    "--warmup": False,
    "--yarn-attn-factor": True,
    "--yarn-beta-fast": True,
    "--yarn-beta-slow": True,
    "--yarn-ext-factor": True,
    "--yarn-orig-ctx": True,
}
"""Long option name to whether it takes a value."""

SHORT = {
    "-b": "--batch-size",
    "-cb": "--cont-batching",
    "-fa": "--flash-attn",
    "-lm": "--load-mode",
    "-nocb": "--no-cont-batching",
    "-sps": "--slot-prompt-similarity",
    "-t": "--threads",
    "-tb": "--threads-batch",
    "-ub": "--ubatch-size",
}

# Only for a better sentence: everything outside ALLOWED is refused anyway.
_OWNED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("the model", ("m", "mu", "dr", "a", "mm", "mmu", "model.*", "hf.*", "docker-repo", "alias", "lora.*", "mmproj.*")),
    ("the address and the network", ("host", "port", "path", "api-prefix", "reuse-port", "ssl-.*", "cors-.*", "rpc")),
    ("the address and the network", ("offline", "media-path", "threads-http", "to", "timeout", "sse-ping-interval")),
    ("access to the engine", ("api-key.*", "props", "(no-)?slots", "slot-save-path", "metrics", "tools.*", "mcp-.*")),
    ("access to the engine", ("ag", "agent", "(no-)?ui.*", "(no-)?webui.*")),
    ("the device", ("dev", "device", "ngl", "(n-)?gpu-layers", "sm", "split-mode", "ts", "tensor-split", "mg")),
    ("the device", ("main-gpu", "fit.*", "n?cmoe", "(n-)?cpu-moe", "ot", "override-.*")),
    ("the memory plan", ("c", "ctx-size", "np", "parallel", "(no-)?kvu?", "(no-)?kv-.*", "ct[kv]", "cache-type-.")),
    ("the memory plan", ("cram", "cache-ram", "swa-full")),
    ("the engine's life", ("v", "lv", "verbos.*", "log-.*", "sleep-idle-seconds", "embeddings?", "rerank(ing)?")),
)

LOAD_OPTIONS = frozenset({"--load-mode", "--mmap", "--no-mmap", "--mlock"})
"""Options that say how the weights get into memory; builds know one or both spellings."""

_TO_LOAD_MODE = {"--mmap": "mmap", "--no-mmap": "none", "--mlock": "mmap+mlock"}
_FROM_LOAD_MODE: dict[str, tuple[str, ...]] = {
    "auto": (),
    "mmap": ("--mmap",),
    "none": ("--no-mmap",),
    "mlock": ("--no-mmap", "--mlock"),
    "mmap+mlock": ("--mlock",),
    "dio": ("--direct-io",),
}


LLAMA_CPP = AllowList(ENGINE, ALLOWED, SHORT, _OWNED)


def parse_extra_args(extra_args: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """See :meth:`AllowList.parse`; of llama.cpp."""
    return LLAMA_CPP.parse(extra_args)


def translate(pairs: list[tuple[str, str | None]], flags: Flags) -> tuple[str, ...]:
    """The words for this build; how a model is loaded is said in one of two ways. EngineIncompatible when it cannot."""
    words: list[str] = []
    for name, value in pairs:
        words += _said(name, value, flags)
    return tuple(words)


def _said(name: str, value: str | None, flags: Flags) -> tuple[str, ...]:
    if name == "--load-mode" and name not in flags.names:
        if value not in _FROM_LOAD_MODE:
            raise UnsafeArgument(ENGINE, name, f"{value!r} is not one of {', '.join(_FROM_LOAD_MODE)}")
        return tuple(_known(each, flags) for each in _FROM_LOAD_MODE[value])
    if name in _TO_LOAD_MODE and name not in flags.names and "--load-mode" in flags.names:
        return "--load-mode", _TO_LOAD_MODE[name]
    known = _known(name, flags)
    return (known,) if value is None else (known, value)


def _known(name: str, flags: Flags) -> str:
    if name not in flags.names:
        raise EngineIncompatible(ENGINE, f"this build of llama-server does not know {name}; remove it from extra_args")
    return name
