"""Which uses of a configuration key this version refuses, asked of the loader itself with small documents."""

from __future__ import annotations

import itertools
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from sbproxy.config.core.shape import annotation_at, bare
from sbproxy.config.core.unsupported import NOT_YET
from sbproxy.config.load import load_text
from sbproxy.errors.config import ConfigInvalid

SAMPLES: dict[Any, tuple[Any, ...]] = {
    str: ("x", f"x@sha256:{'a' * 64}", "a" * 64, "/x", "127.0.0.1", "openai"),
    bool: (False, True),
    int: (1, 2),
    float: (0.5, 1.5),
}
_PROVIDER = {"name": "openai"}
_BASES: dict[str, dict[str, Any]] = {
    "proxy.model_host.deployments.ID": {"model": "m"},
    "origins.HOST": {"action": {"type": "ai_proxy", "providers": [_PROVIDER]}},
    "origins.HOST.action": {"type": "ai_proxy", "providers": [_PROVIDER]},
    "origins.HOST.action.providers[]": _PROVIDER,
    "origins.HOST.action.providers[].serve": {"models": [{"model": "m"}]},
    "origins.HOST.action.providers[].serve.models[]": {"model": "m"},
    "proxy.admin.operators[]": {"username": "o", "password": "p"},
    "proxy.admin.tls": {"cert": "c", "key": "k"},
}


def remark(path: str, block: type[BaseModel], name: str) -> str:
    """What this version leaves out of ``name`` in the block at ``path``, for a table of keys; empty when nothing."""
    field = block.model_fields[name]
    values = [value for value in _samples(bare(annotation_at((name,), block))) if value != field.default]
    verdicts = {str(value): _verdict(path, block, name, value) for value in values}
    refused = [f"`{value}`" for value, verdict in verdicts.items() if verdict == "lacking"]
    accepted = [value for value, verdict in verdicts.items() if verdict == "accepted"]
    if not refused:
        return ""
    if typing.get_origin(bare(field.annotation)) is Literal:
        return f"(not in this version: {', '.join(refused)})"
    if accepted:
        return f"(only `{accepted[0]}` in this version)"
    if isinstance(field.default, bool | int | float):
        return f"(only `{str(field.default).lower()}` in this version)"
    return "(not in this version)"


def _samples(kind: Any) -> Iterator[Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        yield from arguments
    elif origin is list:
        yield from ([each] for each in _samples(bare(arguments[0])))
    elif origin is dict:
        yield from ({"a": each} for each in _samples(bare(arguments[1])))
    else:
        yield from SAMPLES.get(kind, ())


def _verdict(path: str, block: type[BaseModel], name: str, value: Any) -> Literal["accepted", "lacking", "invalid"]:
    """``accepted`` when some document with that value loads; ``lacking`` when only this version is in the way.

    The key may need company, so it is tried alone and beside every choice of its neighbours.
    """
    lacking = False
    for company in _company(block, name):
        try:
            load_text(_document(path, {name: value, **company}), path=Path("/etc/sb.yml"), environ={})
        except ConfigInvalid as error:
            later = [NOT_YET in problem.reason for problem in error.problems]
            own = [NOT_YET in problem.reason for problem in error.problems if name in re.split(r"[.\[]", problem.path)]
            lacking = lacking or any(own) or (any(later) and not own)
        else:
            return "accepted"
    return "lacking" if lacking else "invalid"


def _company(block: type[BaseModel], name: str) -> Iterator[dict[str, Any]]:
    yield {}
    for other in block.model_fields:
        kind = bare(annotation_at((other,), block))
        if other != name and typing.get_origin(kind) is Literal:
            yield from ({other: choice} for choice in typing.get_args(kind))


def _document(path: str, keys: dict[str, Any]) -> str:
    value: Any = {**_BASES.get(path, {}), **keys}
    for step in reversed(path.replace("ID", "d").replace("NAME", "llama_cpp").replace("HOST", "localhost").split(".")):
        name = step.removesuffix("[]")
        value = {name: [value] if step.endswith("[]") else value}
    for parent in _parents(path):
        _fill(value, parent)
    return yaml.safe_dump(value)


def _parents(path: str) -> Iterator[str]:
    steps = path.split(".")
    yield from (each for each in itertools.accumulate(steps[:-1], "{}.{}".format) if each in _BASES)


def _fill(document: dict[str, Any], path: str) -> None:
    """Give the block at ``path`` what it needs beside the key under test."""
    block = document
    for step in path.replace("HOST", "localhost").split("."):
        block = block[step.removesuffix("[]")]
        if step.endswith("[]"):
            block = block[0]
    for key, value in _BASES[path].items():
        block.setdefault(key, value)
