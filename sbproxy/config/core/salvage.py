"""What remains of a document once refused values have a stand-in, so that the cross-field rules still see the rest."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError

from sbproxy.config.core.findings import Finding
from sbproxy.config.core.model_errors import error_path
from sbproxy.config.core.shape import annotation_at, bare, block_at, is_block
from sbproxy.config.core.tree import KeyPath

ModelT = TypeVar("ModelT", bound=BaseModel)

_STAND_INS: dict[Any, tuple[Any, ...]] = {
    str: ("x", "0" * 64),
    SecretStr: ("x",),
    bool: (False,),
    int: (1,),
    float: (1.0,),
}


@dataclass(frozen=True, slots=True)
class Salvaged(Generic[ModelT]):
    """``document`` is what stands, None when nothing does; ``error`` the refusal of the whole as written.

    ``wrong`` are the paths that were refused, and those of every value that had to be replaced.
    """

    document: ModelT | None
    error: ValidationError | None
    wrong: frozenset[KeyPath]

    def standing(self, found: Iterable[Finding], also_wrong: frozenset[KeyPath] = frozenset()) -> Iterator[Finding]:
        """Those of ``found`` that did not look at a wrong value."""
        wrong = self.wrong | also_wrong
        return (finding for finding in found if not finding.doubtful(wrong))


def salvage(data: dict[str, Any], model: type[ModelT], context: dict[str, Any] | None = None) -> Salvaged[ModelT]:
    """Validate ``data``; replace what is refused and try again until the rest stands. Changes ``data``.

    A value with a default is left out, one that its block needs gets a stand-in, as do items of lists: their
    neighbours keep their index.
    """
    first: ValidationError | None = None
    wrong: set[KeyPath] = set()
    replaced: set[KeyPath] = set()
    while True:
        try:
            return Salvaged(model.model_validate(data, context=context), first, frozenset(wrong))
        except ValidationError as error:
            first = first or error
            errors = error.errors(include_url=False, include_context=False, include_input=False)
            for refused in {error_path(item["loc"]) for item in errors}:
                path = _to_replace(refused, replaced)
                if not path:
                    return Salvaged(None, first, frozenset({*wrong, refused}))
                wrong |= {refused, path}
                replaced.add(path)
                _replace(data, model, path)


def _to_replace(path: KeyPath, replaced: set[KeyPath]) -> KeyPath:
    """``path``, or its nearest ancestor that was not replaced before; so the work ends."""
    while path in replaced:
        path = path[:-1]
    return path


def _replace(data: dict[str, Any], model: type[BaseModel], path: KeyPath) -> None:
    container: Any = data
    for step in path[:-1]:
        container = _child(container, step)
    key = path[-1]
    block = block_at(path[:-1], model)
    field = None if block is None else block.model_fields.get(str(key))
    if isinstance(container, list) and isinstance(key, int) and key < len(container):
        container[key] = _stand_in(annotation_at(path, model))
    elif isinstance(container, dict):
        container.pop(key, None)
        if field is not None and field.is_required():
            container[key] = _stand_in(annotation_at(path, model))


def _stand_in(annotation: Any) -> Any:
    """Something valid of that type, or None; what is inside a block is found out by the next validation."""
    kind = bare(annotation)
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if is_block(kind) or origin is dict:
        return {}
    if origin is list:
        return [_stand_in(arguments[0])]
    if origin is typing.Literal:
        return arguments[0]
    return next((each for each in _STAND_INS.get(kind, ()) if _accepts(annotation, each)), None)


def _accepts(annotation: Any, value: Any) -> bool:
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


def _child(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return None
