"""Rules of a catalog document that look at more than one value (contracts section 16). Pure: yields findings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from sbproxy.catalog.core.parameters import parameter_count
from sbproxy.catalog.core.paths import clashes, safe_relative
from sbproxy.catalog.core.written import WrittenCatalog, WrittenFile, WrittenModel, WrittenVariant
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.interpolation import is_reference
from sbproxy.config.core.tree import KeyPath, quoted

SUFFIXES = {"safetensors": (".safetensors",), "gguf": (".gguf",), "pickle": (".bin", ".pt", ".pth")}

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]*")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def catalog_findings(catalog: WrittenCatalog) -> Iterator[Finding]:
    for model_id, model in catalog.models.items():
        path: KeyPath = ("models", model_id)
        yield from _model(model, path)
        seen: dict[str, int] = {}
        for index, variant in enumerate(model.variants):
            place: KeyPath = (*path, "variants", index)
            if seen.setdefault(variant.id, index) != index:
                first = seen[variant.id]
                reason = f"{quoted(variant.id)} is already variants[{first}]"
                yield Finding((*place, "id"), reason, depends_on=((*path, "variants", first, "id"),))
            yield from _variant(variant, place)


def _model(model: WrittenModel, path: KeyPath) -> Iterator[Finding]:
    try:
        parameter_count(model.params)
    except ValueError as error:
        yield Finding((*path, "params"), str(error))
    if model.variants and model.context_length is None:
        yield Finding((*path, "context_length"), "a model with variants needs its context length in tokens")
    if model.hf_token is not None and not is_reference(model.hf_token):
        yield Finding((*path, "hf_token"), "must name an environment variable, written ${NAME}, never the token itself")


def _variant(variant: WrittenVariant, path: KeyPath) -> Iterator[Finding]:
    reason = source_reason(variant.source)
    if reason is not None:
        yield Finding((*path, "source"), reason)
    hub = variant.source.startswith("hf:")
    if hub and variant.stability == "stable" and not _COMMIT.fullmatch(variant.revision):
        reason = "a stable variant of a hub needs a commit of 40 hex characters"
        yield Finding((*path, "revision"), reason, depends_on=((*path, "source"), (*path, "stability")))
    suffixes = SUFFIXES[variant.format]
    if not any(file.path.endswith(suffixes) for file in variant.files):
        reason = f"format {variant.format} needs a file that ends in {' or '.join(suffixes)}"
        paths = tuple((*path, "files", index, "path") for index in range(len(variant.files)))
        yield Finding((*path, "files"), reason, depends_on=((*path, "format"), *paths))
    yield from _files(variant.files, (*path, "files"))
    yield from _wheels(variant, path)


def source_reason(source: str) -> str | None:
    """Why ``source`` cannot be fetched from, or None. Never repeats the source, which may hold a credential."""
    scheme, _, rest = source.partition(":")
    if not source.isprintable() or not source.isascii():
        return "must be printable ASCII"
    if scheme == "hf":
        return None if _REPO.fullmatch(rest) and ".." not in rest else "a hub source is written hf:Org/Repo"
    if scheme == "file":
        return None if rest.startswith("/") else "a file source is written file:/absolute/path"
    if scheme == "pypi":
        return None if _DISTRIBUTION.fullmatch(rest) else "a package source is written pypi:name"
    if scheme in ("https", "http"):
        return _web_reason(source)
    if scheme == "ms":
        return "ms: is reserved and not supported by this version"
    return "must begin with hf:, https:, file: or pypi:"


def _web_reason(source: str) -> str | None:
    try:
        parts = urlsplit(source)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is not a web address"
    if not host or port == 0 or " " in source:
        return "is not a web address"
    if parts.scheme == "http" and host not in _LOOPBACK:
        return "plain http is only for this machine; use https"
    if "@" in parts.netloc or "#" in source:
        return "must hold neither credentials nor a fragment"
    return None


def _files(files: list[WrittenFile], path: KeyPath) -> Iterator[Finding]:
    names = [file.path for file in files]
    clashing = clashes(names, taken="artifact.json")
    for index, name in enumerate(names):
        place = (*path, index, "path")
        if not safe_relative(name):
            yield Finding(place, "must be a plain relative path, without '..', '\\', ':' and empty parts")
        elif index in clashing:
            other, reason = clashing[index]
            depends = ((*path, other, "path"),) if other is not None else ()
            yield Finding(place, f"{quoted(name)} {reason}", depends_on=depends)


def _wheels(variant: WrittenVariant, path: KeyPath) -> Iterator[Finding]:
    package = variant.source.startswith("pypi:")
    source: tuple[KeyPath, ...] = ((*path, "source"),)
    if package and not variant.wheels:
        reason = "a pypi: source needs its wheels, each by distribution, version and sha256"
        yield Finding((*path, "wheels"), reason, depends_on=source)
    if not package and variant.wheels:
        yield Finding((*path, "wheels"), "only a pypi: source has wheels", depends_on=source)
    for index, file in enumerate(variant.files):
        if file.member is not None and not package:
            reason = "only a file of a pypi: source has a member"
            yield Finding((*path, "files", index, "member"), reason, depends_on=source)
    for index, wheel in enumerate(variant.wheels):
        if not _DISTRIBUTION.fullmatch(wheel.distribution):
            yield Finding((*path, "wheels", index, "distribution"), "is not the name of a distribution")
        if not _VERSION.fullmatch(wheel.version):
            yield Finding((*path, "wheels", index, "version"), "must be one exact version")
