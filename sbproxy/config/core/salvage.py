"""What remains of a document once the refused values are left out, so that the cross-field rules still see it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from sbproxy.config.core.findings import Finding
from sbproxy.config.core.model_errors import error_path
from sbproxy.config.core.tree import KeyPath

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Salvaged(Generic[ModelT]):
    """``document`` is what stands, None when nothing does; ``error`` the refusal of the whole as written.

    ``dropped`` are the paths that were left out, as written.
    """

    document: ModelT | None
    error: ValidationError | None
    dropped: frozenset[KeyPath]
    plain: _Plain

    def as_written(self, finding: Finding, also_wrong: frozenset[KeyPath] = frozenset()) -> Finding | None:
        """``finding`` with the list indexes that the text has; None when it may only follow from what was left out."""
        placed = replace(finding, path=self.plain.original(finding.path))
        return None if placed.doubtful(self.dropped | also_wrong) else placed


def salvage(data: dict[str, Any], model: type[ModelT], context: dict[str, Any] | None = None) -> Salvaged[ModelT]:
    """Validate ``data``; leave out what is refused and try again until the rest stands. Changes ``data``."""
    plain = _Plain(data)
    dropped: set[KeyPath] = set()
    first: ValidationError | None = None
    document: ModelT | None = None
    while document is None:
        try:
            document = model.model_validate(data, context=context)
        except ValidationError as error:
            first = first or error
            if not plain.leave_out(error, dropped):
                break
    return Salvaged(document, first, frozenset(dropped), plain)


class _Plain:
    """Plain data whose lists remember the indexes that their items had at first."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data
        self._indexes: dict[int, list[int]] = {}
        self._remember(data)

    def _remember(self, value: Any) -> None:
        if isinstance(value, list):
            self._indexes[id(value)] = list(range(len(value)))
        for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            self._remember(child)

    def original(self, path: KeyPath) -> KeyPath:
        steps: list[str | int] = []
        value: Any = self._data
        for step in path:
            known = isinstance(value, list) and isinstance(step, int) and step < len(value)
            steps.append(self._indexes[id(value)][int(step)] if known else step)
            value = _child(value, step)
        return tuple(steps)

    def leave_out(self, error: ValidationError, dropped: set[KeyPath]) -> bool:
        """Remove every refused value (of a missing key: the block that lacks it) and add its path to ``dropped``.

        False when there was nothing to remove.
        """
        targets: list[tuple[Any, str | int]] = []
        for item in error.errors(include_url=False, include_context=False, include_input=False):
            path = error_path(item["loc"])
            dropped.add(self.original(path))
            path = path[:-1] if item["type"] == "missing" else path
            if path:
                dropped.add(self.original(path))
                targets.append((self._at(path[:-1]), path[-1]))
        for container, key in targets:
            if isinstance(container, dict):
                container.pop(key, None)
        lists = {id(container): container for container, _ in targets if isinstance(container, list)}
        for identity, items in lists.items():
            wrong = {key for container, key in targets if container is items}
            self._indexes[identity] = [at for now, at in enumerate(self._indexes[identity]) if now not in wrong]
            items[:] = [item for now, item in enumerate(items) if now not in wrong]
        return bool(targets)

    def _at(self, path: KeyPath) -> Any:
        value: Any = self._data
        for step in path:
            value = _child(value, step)
        return value


def _child(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return None
