"""Turns what pydantic refuses into findings: our words, valid names, the nearest of them; never the refused value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.findings import Finding
from sbproxy.config.core.shape import block_at
from sbproxy.config.core.tree import KeyPath, Listing, Node, Scalar, node_at, quoted
from sbproxy.config.core.unsupported import ACTIONS, BY_BLOCK, INSTEAD, NOT_YET, REMOVED

UNKNOWN_KEY = "unknown key"

_EXPECTED = {
    "string_type": "text (quote it when it looks like a number)",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_BOUNDS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "string_too_long": "must be at most {max_length} characters",
    "too_short": "must hold at least {min_length} of them",
    "too_long": "must hold at most {max_length} of them",
}


def nearest(name: str, names: tuple[str, ...]) -> str | None:
    """The one closest valid name, when it is close enough to be meant."""
    return next(iter(difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)), None)


def findings(
    error: ValidationError,
    root: Node,
    model: type[BaseModel] = SbConfig,
    lacking: Mapping[str, frozenset[str]] = BY_BLOCK,
) -> Iterator[Finding]:
    """Everything that pydantic refused in a ``model``. An action of another type is one finding, whatever its keys.

    ``lacking``: known names that this version does not have, by block name.
    """
    other_actions = tuple(_other_actions(error, root))
    yield from other_actions
    skip = {finding.path[:-1] for finding in other_actions}
    for item in error.errors(include_url=False, include_input=False):
        path = error_path(item["loc"])
        if not any(path[: len(action)] == action for action in skip):
            if item["type"] == "extra_forbidden":
                yield _unknown_key(path, model, lacking)
            else:
                yield _finding(item["type"], path, item.get("ctx", {}), root)


def misspelt(found: Iterable[Finding], root: Node) -> frozenset[KeyPath]:
    """Keys that are not written, but meant by an unknown key beside them: their values count as wrong too."""
    meant = [(*each.path[:-1], each.near) for each in found if each.reason == UNKNOWN_KEY and each.near is not None]
    return frozenset(path for path in meant if node_at(root, path) is None)


def error_path(loc: tuple[int | str, ...]) -> KeyPath:
    """pydantic's ``loc`` as a key path; a refused map key is reported at the entry."""
    return loc[:-1] if loc and loc[-1] == "[key]" else loc


def _other_actions(error: ValidationError, root: Node) -> Iterator[Finding]:
    for item in error.errors(include_url=False, include_input=False):
        path = error_path(item["loc"])
        if item["type"] == "literal_error" and path[:1] == ("origins",) and path[2:] == ("action", "type"):
            node = node_at(root, path)
            if isinstance(node, Scalar) and node.value in ACTIONS:
                yield Finding(path, f"the action {node.value} {NOT_YET}", allowed=("ai_proxy",))


def _finding(kind: str, path: KeyPath, ctx: dict[str, Any], root: Node) -> Finding:
    if kind == "missing":
        return Finding(path, "this key is required and missing")
    if kind == "literal_error":
        return _other_choice(path, ctx, root)
    if kind == "value_error":
        return Finding(path, str(ctx["error"]))
    if kind in _EXPECTED:
        return Finding(path, f"expected {_EXPECTED[kind]}, found {_found(node_at(root, path))}")
    if kind in _BOUNDS:
        return Finding(path, _BOUNDS[kind].format(**ctx))
    return Finding(path, f"is not valid ({kind.replace('_', ' ')})")


def _unknown_key(path: KeyPath, model: type[BaseModel], lacking: Mapping[str, frozenset[str]]) -> Finding:
    name = str(path[-1])
    block = block_at(path[:-1], model)
    allowed = tuple(block.model_fields) if block is not None else ()
    if name in REMOVED:
        return Finding(path, REMOVED[name])
    if block is not None and name in INSTEAD.get(block.__name__, {}):
        return Finding(path, INSTEAD[block.__name__][name])
    if block is not None and name in lacking.get(block.__name__, ()):
        return Finding(path, NOT_YET)
    return Finding(path, UNKNOWN_KEY, nearest(name, allowed), allowed)


def _other_choice(path: KeyPath, ctx: dict[str, Any], root: Node) -> Finding:
    allowed = tuple(word.strip("'") for word in str(ctx["expected"]).replace(" or ", ", ").split(", "))
    node = node_at(root, path)
    if isinstance(node, Scalar) and node.value is not None:
        return Finding(path, f"{quoted(node.text)} is not one of the choices", nearest(node.text, allowed), allowed)
    if node is not None and not isinstance(node, Scalar) and path[-2:-1] == ("engines",):
        name = str(path[-1])
        return Finding(path, f"{quoted(name)} is not an engine", nearest(name, allowed), allowed)
    return Finding(path, f"expected a choice, found {_found(node)}", allowed=allowed)


def _found(node: Node | None) -> str:
    if node is None:
        return "nothing"
    if not isinstance(node, Scalar):
        return "a list" if isinstance(node, Listing) else "a mapping"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return names.get(type(node.value), "nothing (the key has no value)")
