"""Block types of a provider's ``serve:``, the form that deployments had before ``proxy.model_host`` (document 1).

What a block becomes is decided in ``core.serve_lowering``; rules over several values stand in ``core.serve_rules``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sbproxy.config.core.checks import identifier, printable
from sbproxy.config.core.fields import AbsolutePath, Block, FilePath, Identifier, Name, ShortName
from sbproxy.config.core.model_host import (
    EngineChoice,
    EngineConfig,
    EngineName,
    Gib,
    KvQuant,
    ModalityChoice,
    ReferencePrice,
)

_REPOSITORY = re.compile(
    r"(?P<repository>[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})(:(?P<quant>[A-Za-z0-9._-]{1,64}))?"
)
_DURATION = re.compile(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?", re.ASCII)
_SECONDS = (86_400, 3600, 60, 1)


@dataclass(frozen=True, slots=True)
class RawReference:
    """A model outside of every catalog: a repository of the hub (``Org/Repo``), or a file of this machine."""

    kind: Literal["hf", "file"]
    location: str
    quant: str | None = None


def raw_reference(model: str) -> RawReference | None:
    """None for a catalog id. Raises ValueError for a reference that is not well formed."""
    scheme, _, rest = model.partition(":")
    if scheme == "hf":
        match = _REPOSITORY.fullmatch(rest)
        if match is None or ".." in rest:
            raise ValueError("a repository of the hub is written hf:Org/Repo or hf:Org/Repo:QUANT")
        return RawReference("hf", match["repository"], match["quant"])
    if scheme == "file":
        if not rest.startswith("/") or not rest.lower().endswith(".gguf") or "/../" in rest:
            raise ValueError("a file of this machine is written file:/absolute/path.gguf, without '..'")
        return RawReference("file", printable(rest))
    return None


def duration_seconds(text: str) -> int:
    """Whole seconds of ``30m``, ``1h`` or ``1h30m``. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError("must be a duration such as 90s, 30m, 1h or 1h30m")
    return sum(int(number or 0) * unit for number, unit in zip(match.groups(), _SECONDS, strict=True))


def _model(value: str) -> str:
    return value if raw_reference(value) is not None else identifier(value)


def _duration(value: str) -> str:
    duration_seconds(value)
    return value


def _gguf_name(value: str) -> str:
    parts = printable(value).split("/")
    if not value.lower().endswith(".gguf") or any(part in ("", ".", "..") or part.startswith("-") for part in parts):
        raise ValueError("must be the name of a .gguf file inside the repository")
    return value


class ServeModelConfig(Block):
    """One model of a `serve:` block; becomes one deployment."""

    model: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_model)]
    """Catalog id, or a raw reference: `hf:Org/Repo`, `hf:Org/Repo:QUANT` or `file:/absolute/path.gguf`."""
    name: Name | None = None
    """Name that clients use; the catalog id when unset, required for a raw reference."""
    variant: Identifier | None = None
    """Exact variant of a catalog model; without it the first one that runs here is taken."""
    engine: EngineChoice = "auto"
    """Engine to run the model with."""
    modality: ModalityChoice | None = None
    """Task of the model; the catalog's when unset, `chat` for a raw reference."""
    max_context: Annotated[int, Field(ge=1)] | None = None
    """Context length of one request in tokens; the catalog's when unset, 4096 for a raw reference."""
    keep_alive: Annotated[str, Field(min_length=1, max_length=40), AfterValidator(_duration)] | None = None
    """Idle time after which the engine is stopped, as `30m` or `1h`; never when unset."""
    kv_quant: KvQuant = "auto"
    """Quantization of the KV cache."""
    enable_prefix_caching: bool = False
    """Reuse the KV blocks of common prompt prefixes (vLLM)."""
    pinned: bool = False
    """Never evict this model to make room for another."""
    gguf_file: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_gguf_name)] | None = None
    """File of a repository with several, only for a raw `hf:` reference run by llama.cpp."""
    extra_args: list[str] = []
    """Further engine flags, one argv element each, filtered against the engine's allow-list."""
    tool_call_parser: ShortName | None = None
    """Tool-call parser that turns on automatic tool choice (vLLM)."""
    swap_space_gib: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Swap pool in CPU memory, in GiB (vLLM)."""
    cpu_offload_gib: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Weights that stay in CPU memory, in GiB (vLLM)."""
    reference: ReferencePrice | None = None
    """Hosted model that this one displaces; prices the value report."""

    @property
    def raw(self) -> RawReference | None:
        return raw_reference(self.model)

    @property
    def public_name(self) -> str:
        """What clients call it. A raw reference without a name is refused, so its text never becomes one."""
        return self.name or self.model


class ServeConfig(Block):
    """Compatibility form of local models inside a provider; lowered to deployments when the document is read."""

    models: Annotated[list[ServeModelConfig], Field(min_length=1)]
    """The models."""
    catalog_file: FilePath | None = None
    """Same as `proxy.model_host.catalog_file`."""
    cache_dir: AbsolutePath | None = None
    """Same as `proxy.model_host.cache.directory`."""
    cache_budget_gib: Gib | None = None
    """Same as `proxy.model_host.cache.budget_gib`."""
    allow_unpinned_refs: bool = False
    """Permit raw references on a node with the cluster role worker; without a cluster they need no permission."""
    eviction: Literal["lru", "never"] = "lru"
    """Same as `proxy.model_host.cache.eviction`."""
    engines: dict[EngineName, EngineConfig] = {}
    """Same as `proxy.model_host.engines`."""
    max_concurrent_requests: Annotated[int, Field(ge=1)] | None = None
    """Requests that all served models together answer at once; shared out evenly among them."""
    queue_timeout_ms: Annotated[int, Field(ge=1)] | None = None
    """How long a request may wait, in milliseconds; read only with `max_concurrent_requests`."""
