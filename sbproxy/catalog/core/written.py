"""A catalog v2 document as people write it: types and single-value bounds (contracts section 16).

Rules over several values stand in ``catalog.core.rules``; the values that the program works with in ``core.model``.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from sbproxy.catalog.core.model import Accelerator, Format, Modality, PullPolicy, Stability
from sbproxy.config.core.checks import printable
from sbproxy.config.core.fields import Block, Identifier, Sha256Hex, ShortName
from sbproxy.config.core.model_host import EngineName

Line = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(printable)]
"""Metadata that people see."""

LACKING: Final = {
    "WrittenModel": frozenset(
        ["hf_repo", "quants", "min_vram_hint_gib", "source", "revision", "sha256", "engine", "aliases"]
    )
}
"""Fields of the first catalog version, which name no exact files."""


class WrittenFile(Block):
    """One exact file."""

    path: Annotated[str, Field(min_length=1, max_length=1024)]
    sha256: Sha256Hex
    size_bytes: Annotated[int, Field(gt=0)]
    member: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(printable)] | None = None


class WrittenWheel(Block):
    """One pinned wheel of a `pypi:` source."""

    distribution: Annotated[str, Field(min_length=1, max_length=128)]
    version: Annotated[str, Field(min_length=1, max_length=128)]
    sha256: Sha256Hex


class WrittenCapability(Block):
    """CUDA compute capability."""

    major: Annotated[int, Field(ge=0, le=99)]
    minor: Annotated[int, Field(ge=0, le=99)]


class WrittenRequirements(Block):
    """What a worker must offer."""

    accelerators: Annotated[list[Accelerator], Field(min_length=1)]
    min_compute_capability: WrittenCapability | None = None
    min_memory_bytes: Annotated[int, Field(gt=0)] | None = None


class WrittenVariant(Block):
    """One exact artifact."""

    id: Identifier
    format: Format
    quant: Line
    engines: Annotated[list[EngineName], Field(min_length=1, max_length=16)]
    source: Annotated[str, Field(min_length=1, max_length=2048)]
    revision: Line
    wheels: Annotated[list[WrittenWheel], Field(max_length=64)] = []
    files: Annotated[list[WrittenFile], Field(min_length=1, max_length=1024)]
    requirements: WrittenRequirements
    stability: Stability
    certification: Line


Figure = Annotated[int, Field(gt=0, le=65_536)]


class WrittenAttention(Block):
    """What sizes a model's KV cache before its file is here: layers, heads that keep keys and values, and their width.

    Counted as the file's header counts them; it wins as soon as it can be read. Where layers differ, the largest.
    """

    layers: Figure
    kv_heads: Figure
    head_dim: Figure


class WrittenModel(Block):
    """One logical model; variants in the order of preference.

    Without `attention` the memory estimate of a model that is not pulled yet leaves its KV cache out.
    """

    params: Line
    license: Line
    family: Line
    context_length: Annotated[int, Field(gt=0)] | None = None
    variants: Annotated[list[WrittenVariant], Field(max_length=128)] = []
    allow_pickle: bool = False
    modality: Modality = "chat"
    pull: PullPolicy = "on_demand"
    hf_token: str | None = None
    attention: WrittenAttention | None = None


class WrittenCatalog(Block):
    """The whole document."""

    schema_version: Literal[2]
    catalog_revision: ShortName
    models: Annotated[dict[Identifier, WrittenModel], Field(max_length=1024)]
