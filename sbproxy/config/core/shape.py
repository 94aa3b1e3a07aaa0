"""Walks the block types: which block stands at a key path, and so which names are valid; which values are secret."""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Annotated, Any, Union

from pydantic import BaseModel, SecretStr

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.tree import KeyPath

EACH = "*"
"""Stands for any key of a map and any index of a list in a pattern."""

Pattern = tuple[str, ...]


def block_at(path: KeyPath, root: type[BaseModel] = SbConfig) -> type[BaseModel] | None:
    """The block type that describes the mapping at ``path`` of a ``root``; None where no block stands."""
    annotation = bare(annotation_at(path, root))
    return annotation if is_block(annotation) else None


def annotation_at(path: KeyPath, root: type[BaseModel]) -> Any:
    """The type at ``path`` with its constraints; None where no type says what may stand there."""
    annotation: Any = root
    for step in path:
        annotation = _child(bare(annotation), step)
    return annotation


@cache
def secret_patterns() -> frozenset[Pattern]:
    """Every position of a :class:`SecretStr`, from the root."""
    return frozenset(_secrets(SbConfig, ()))


def is_secret(path: KeyPath) -> bool:
    return any(
        len(pattern) == len(path) and all(want in (EACH, step) for want, step in zip(pattern, path, strict=True))
        for pattern in secret_patterns()
    )


def _secrets(annotation: Any, pattern: Pattern) -> list[Pattern]:
    if annotation is SecretStr:
        return [pattern]
    if is_block(annotation):
        fields = annotation.model_fields
        return [found for name, field in fields.items() for found in _secrets(bare(field.annotation), (*pattern, name))]
    if (inner := _element(annotation)) is not None:
        return _secrets(bare(inner), (*pattern, EACH))
    return []


def _child(annotation: Any, step: str | int) -> Any:
    if is_block(annotation):
        field = annotation.model_fields.get(step)
        if field is None or not field.metadata:
            return None if field is None else field.annotation
        return Annotated[field.annotation, *field.metadata]
    return _element(annotation)


def _element(annotation: Any) -> Any:
    """What a list or map holds, else None."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    return arguments[-1] if origin in (list, dict) else None


def bare(annotation: Any) -> Any:
    """``annotation`` without ``Annotated`` and without ``| None``."""
    if hasattr(annotation, "__metadata__"):
        return bare(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (Union, types.UnionType):
        rest = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
        return bare(rest[0]) if len(rest) == 1 else annotation
    return annotation


def is_block(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
