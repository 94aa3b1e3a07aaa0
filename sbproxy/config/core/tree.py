"""A document as written: scalars, lists and tables, each with the place where it stands.

Holds no meaning; the typed blocks get it through :func:`plain`, and problems get their line through :func:`mark_of`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

KeyPath = tuple[str | int, ...]
"""Keys and list indexes from the root."""

ScalarValue = str | int | float | bool | None

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Mark:
    """Where something begins; both count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """``written`` is the text in the file, ``text`` the same with variables filled in, ``value`` the typed value."""

    value: ScalarValue
    text: str
    written: str
    mark: Mark

    @property
    def interpolated(self) -> bool:
        return self.text != self.written


@dataclass(frozen=True, slots=True)
class Listing:
    """A sequence."""

    items: tuple[Node, ...]
    mark: Mark


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``key: value``; ``mark`` is that of the key."""

    key: str
    value: Node
    mark: Mark


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping in the order written. Keys are unique."""

    entries: tuple[Entry, ...]
    mark: Mark


Node = Scalar | Listing | Table


def plain(node: Node) -> Any:
    """Fresh dicts, lists and values; an aliased node becomes one copy for each place."""
    if isinstance(node, Table):
        return {entry.key: plain(entry.value) for entry in node.entries}
    if isinstance(node, Listing):
        return [plain(item) for item in node.items]
    return node.value


def mark_of(root: Node, path: KeyPath) -> Mark:
    """Where ``path`` is written: its key, or else the nearest ancestor that is."""
    node, mark = root, root.mark
    for step in path:
        if isinstance(node, Table):
            entry = next((entry for entry in node.entries if entry.key == step), None)
            if entry is None:
                break
            node, mark = entry.value, entry.mark
        elif isinstance(node, Listing) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
            mark = node.mark
        else:
            break
    return mark


def node_at(root: Node, path: KeyPath) -> Node | None:
    """The node at ``path``, or None when nothing is written there."""
    node: Node = root
    for step in path:
        if isinstance(node, Table):
            entry = next((entry for entry in node.entries if entry.key == step), None)
            if entry is None:
                return None
            node = entry.value
        elif isinstance(node, Listing) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
        else:
            return None
    return node


def scalars(node: Node, path: KeyPath = ()) -> list[tuple[KeyPath, Scalar]]:
    """Every scalar under ``node`` with its key path, in the order written."""
    if isinstance(node, Scalar):
        return [(path, node)]
    if isinstance(node, Listing):
        steps: list[tuple[str | int, Node]] = list(enumerate(node.items))
    else:
        steps = [(entry.key, entry.value) for entry in node.entries]
    return [found for step, child in steps for found in scalars(child, (*path, step))]


def render(path: KeyPath) -> str:
    """``proxy.admin.operators[0].password``; keys that hold other characters are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            key = step if _BARE_KEY.fullmatch(step) else quoted(step)
            text += f".{key}" if text else key
    return text


def quoted(text: str) -> str:
    """``text`` in double quotes, printable and bounded: safe in an error message."""
    shown = text if len(text) <= 100 else f"{text[:99]}…"
    body = "".join(char if char.isprintable() and char not in '"\\' else f"\\u{ord(char):04x}" for char in shown)
    return f'"{body}"'
