"""Rules of one provider's ``serve:`` block that look at more than one value (document 1; contracts sections 5 and 14).

What several blocks must agree on is ``core.serve_policy``'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sbproxy.config.core.findings import Finding
from sbproxy.config.core.model_errors import nearest
from sbproxy.config.core.origins import ProviderConfig
from sbproxy.config.core.serve import ServeConfig, ServeModelConfig
from sbproxy.config.core.serve_deployment import deployment_of, gguf
from sbproxy.config.core.tree import KeyPath, quoted, render

SIZE: Final = re.compile(
    r"(?<![A-Za-z0-9.])(?=[0-9.]*[1-9])((?:[1-9][0-9]{0,3}x)?[0-9]{1,4}(?:\.[0-9]{1,3})?[KMBT])(?![A-Za-z0-9])",
    re.IGNORECASE,
)
"""A parameter count inside the name of a repository or file, such as ``0.5B`` or ``8x7B``."""


def serving_findings(provider: ProviderConfig, serve: ServeConfig, path: KeyPath) -> Iterator[Finding]:
    """``path`` is the provider's."""
    said = (*path, "serve")
    refused = {
        "provider_type": provider.provider_type is not None,
        "deployment": provider.deployment is not None,
        "api_key": provider.api_key is not None,
        "base_url": provider.base_url is not None,
        "allow_private_base_url": provider.allow_private_base_url,
        "model_map": bool(provider.model_map),
        "timeout_ms": provider.timeout_ms is not None,
    }
    for key, written in refused.items():
        if written:
            reason = f"a provider with a serve block has no {key}; the block says what runs. Remove one of the two"
            yield Finding((*path, key), reason)
    for index, entry in enumerate(serve.models):
        yield from _entry(entry, (*said, "models", index))
    yield from _names(provider, serve, path)


def served_names(serve: ServeConfig) -> tuple[str, ...]:
    """Names that clients use, each once, in the order written."""
    return tuple(dict.fromkeys(entry.public_name for entry in serve.models))


def _names(provider: ProviderConfig, serve: ServeConfig, path: KeyPath) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for index, entry in enumerate(serve.models):
        place: KeyPath = (*path, "serve", "models", index)
        before = first.setdefault(entry.public_name, index)
        if before != index and deployment_of(serve.models[before]) != deployment_of(entry):
            other = (*path, "serve", "models", before)
            reason = f"{quoted(entry.public_name)} is already another model of this block, {render(other[-2:])}"
            yield Finding((*place, "name" if entry.name else "model"), reason, depends_on=(other, place))
        elif provider.models and entry.public_name not in provider.models:
            reason = f"{quoted(entry.public_name)} is not in the provider's models, so no request would reach it"
            near = nearest(entry.public_name, tuple(provider.models))
            depends: tuple[KeyPath, ...] = ((*path, "models"), place)
            yield Finding((*place, "name" if entry.name else "model"), reason, near, depends_on=depends)
    for index, name in enumerate(provider.models):
        if name not in first:
            reason = f"the serve block has no model named {quoted(name)}"
            near = nearest(name, tuple(first))
            yield Finding((*path, "models", index), reason, near, tuple(first), depends_on=((*path, "serve"),))


def _entry(entry: ServeModelConfig, path: KeyPath) -> Iterator[Finding]:
    raw = entry.raw
    model: tuple[KeyPath, ...] = ((*path, "model"),)
    if raw is None:
        if entry.gguf_file is not None:
            reason = "a catalog model names its exact files; write variant, or pin the file as a catalog v2 variant"
            yield Finding((*path, "gguf_file"), reason, depends_on=model)
        return
    if entry.name is None:
        reason = "a raw reference needs a name for its clients"
        yield Finding((*path, "name"), reason, depends_on=model)
    if entry.variant is not None:
        reason = "a raw reference has no variants; name a quantization as hf:Org/Repo:QUANT, or a catalog model"
        yield Finding((*path, "variant"), reason, depends_on=model)
    if entry.gguf_file is not None and raw.kind == "file":
        reason = "the reference names the file itself; remove gguf_file"
        yield Finding((*path, "gguf_file"), reason, depends_on=model)
    if gguf(raw, entry) and entry.engine not in ("auto", "llama_cpp"):
        reason = f"{entry.engine} does not run GGUF files, and the reference means one; use engine: llama_cpp"
        depends = (*model, (*path, "gguf_file"))
        yield Finding((*path, "engine"), reason, depends_on=depends)
    if raw.kind == "hf" and SIZE.search(f"{raw.location}-{entry.gguf_file or ''}") is None:
        reason = (
            "the name does not tell how large the model is (such as 0.5B), so its memory cannot be planned;"
            " pin it as a catalog v2 model"
        )
        yield Finding((*path, "model"), reason, depends_on=((*path, "gguf_file"),))
