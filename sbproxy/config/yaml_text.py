"""Reads YAML text into a :class:`Table` with places, bounded in size, nodes and depth; reports all problems at once.

Refuses duplicate keys, merge keys, custom tags and alias bombs; fills in ``${VAR}`` when given an environment.
Says nothing about which keys and values make sense. The catalog is read through it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import yaml

from sbproxy.config.core.interpolation import expand, shielded, unshielded
from sbproxy.config.core.scalars import typed
from sbproxy.config.core.tree import Entry, KeyPath, Listing, Mark, Node, Scalar, Table, quoted, render
from sbproxy.errors.config import Problem

MAX_BYTES = 4 << 20
MAX_NODES = 100_000
MAX_DEPTH = 64
MAX_EXPANDED = 16 << 20
MAX_PROBLEMS = 200
"""Beyond this many the rest is counted, not listed."""

STRING_TAG = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class Reading:
    """``root`` is None when the text could not be followed to its end. ``unset``: (path, mark, variable name)."""

    root: Node | None
    problems: tuple[Problem, ...]
    unset: tuple[tuple[KeyPath, Mark, str], ...] = ()
    malformed: tuple[tuple[KeyPath, Mark], ...] = ()


class _Fatal(Exception):
    """Reading cannot go on; the problem is already noted."""


def read_tree(text: str, *, file: str, environ: Mapping[str, str] | None = None) -> Reading:
    """Compose ``text``; without ``environ`` a ``${VAR}`` stays as written."""
    composer = _Composer(text, file, environ)
    try:
        root: Node | None = composer.document()
    except _Fatal:
        root = None
    return Reading(root, tuple(composer.problems), tuple(composer.unset), tuple(composer.malformed))


def decode(data: bytes) -> str:
    """The text of a file. Raises ValueError with the reason when it is too large or not UTF-8."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"is not UTF-8 text (line {line})") from None


class _Composer:
    """One pass over the parser's events. Alias targets are shared, their weight is counted at each use."""

    def __init__(self, text: str, file: str, environ: Mapping[str, str] | None) -> None:
        self._text = text
        self._file = file
        self._environ = environ
        self._anchors: dict[str, tuple[Node, int, int]] = {}
        self._weight = 0
        self._expanded = 0
        self.problems: list[Problem] = []
        self.unset: list[tuple[KeyPath, Mark, str]] = []
        self.malformed: list[tuple[KeyPath, Mark]] = []

    def document(self) -> Node:
        if len(self._text) > MAX_BYTES:
            self._fail((), None, f"larger than {MAX_BYTES >> 20} MiB")
        try:
            self._events = yaml.parse(shielded(self._text), Loader=yaml.SafeLoader)
        except ValueError as error:
            self._fail((), None, str(error))
        self._next()
        if isinstance(self._next(), yaml.StreamEndEvent):
            self._fail((), None, "the file is empty; expected a mapping")
        root = self._node(self._next(), (), 0)
        self._next()
        after = self._next()
        if not isinstance(after, yaml.StreamEndEvent):
            self._fail((), _mark(after), "a second document begins here; the file must hold exactly one")
        return root

    def _next(self) -> yaml.Event:
        try:
            return next(self._events)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = None if mark is None else Mark(mark.line + 1, mark.column + 1)
            reason = " ".join(part for part in (error.context, error.problem) if part)
            self._fail((), place, f"YAML syntax: {unshielded(reason)}")
        except yaml.reader.ReaderError as error:
            line = self._text.count("\n", 0, max(error.position, 0)) + 1
            self._fail((), Mark(line, 1), f"YAML syntax: character U+{int(error.character):04X} is not allowed")
        except (yaml.YAMLError, ValueError, OverflowError):
            # PyYAML passes "\UFFFFFFFF" to chr(), which answers with a plain ValueError or OverflowError.
            self._fail((), None, "YAML syntax: an escape in double quotes names no character")

    def _node(self, event: yaml.Event, path: KeyPath, depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event, path, depth)
        before = self._weight
        self._count(1, path, _mark(event))
        self._bound_depth(depth, path, event)
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._listing(event, path, depth)
        else:
            node = self._table(event, path, depth)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            self._anchors[event.anchor] = (node, self._weight - before, _height(node))
        return node

    def _aliased(self, event: yaml.AliasEvent, path: KeyPath, depth: int) -> Node:
        anchor = str(event.anchor)
        if anchor not in self._anchors:
            self._fail(path, _mark(event), f"alias *{anchor} has no complete anchor before it")
        node, weight, height = self._anchors[anchor]
        self._count(weight, path, _mark(event))
        self._bound_depth(depth + height, path, event)
        return node

    def _listing(self, event: yaml.SequenceStartEvent, path: KeyPath, depth: int) -> Listing:
        self._refuse_tag(event.tag, path, _mark(event))
        items: list[Node] = []
        while not isinstance(following := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(following, (*path, len(items)), depth + 1))
        return Listing(tuple(items), _mark(event))

    def _table(self, event: yaml.Event, path: KeyPath, depth: int) -> Table:
        if isinstance(event, yaml.MappingStartEvent):
            self._refuse_tag(event.tag, path, _mark(event))
        entries: dict[str, Entry] = {}
        while not isinstance(following := self._next(), yaml.MappingEndEvent):
            mark = _mark(following)
            key = self._key(following, path, depth)
            value = self._node(self._next(), (*path, key), depth + 1)
            if key in entries:
                first = entries[key].mark.line
                self._note((*path, key), mark, f"duplicate key; it is first written at line {first}")
            else:
                entries[key] = Entry(key, value, mark)
        return Table(tuple(entries.values()), _mark(event))

    def _key(self, event: yaml.Event, path: KeyPath, depth: int) -> str:
        node = self._node(event, path, depth + 1)
        if not isinstance(node, Scalar):
            self._fail(path, _mark(event), "a key must be text, not a list or a mapping")
        if node.text == "<<" and isinstance(event, yaml.ScalarEvent) and event.style is None:
            self._note(path, node.mark, "merge keys (<<) are not supported; write the keys out")
        # A key is a name whatever it looks like: `123:` and `on:` are the texts "123" and "on".
        return node.text

    def _scalar(self, event: yaml.ScalarEvent, path: KeyPath) -> Scalar:
        mark, written = _mark(event), unshielded(event.value)
        text = written
        if self._environ is not None:
            text = self._filled(written, path, mark)
        quoted_style = event.style is not None or event.tag in ("!", STRING_TAG)
        if event.tag not in (None, "!"):
            self._refuse_tag(event.tag, path, mark)
        try:
            text = _whole(text)
            value = text if quoted_style else typed(text)
        except UnicodeError:
            self._note(path, mark, "holds half of a surrogate pair")
            text = value = ""
        except ValueError as error:
            self._note(path, mark, str(error))
            value = None
        if value is None and text != written:
            value = text  # a variable can hold a number or a truth value, never "nothing"
        return Scalar(value, text, written, mark)

    def _filled(self, written: str, path: KeyPath, mark: Mark) -> str:
        assert self._environ is not None  # noqa: S101 - for the type checker; the only caller has just looked
        try:
            expansion = expand(written, self._environ)
        except ValueError as error:
            self._fail(path, mark, str(error))
        self._expanded += len(expansion.text)
        if self._expanded > MAX_EXPANDED:
            self._fail(path, mark, "the document grows too large once its variables are filled in")
        self.unset.extend((path, mark, name) for name in expansion.missing)
        if expansion.malformed:
            self.malformed.append((path, mark))
        return expansion.text

    def _refuse_tag(self, tag: str | None, path: KeyPath, mark: Mark) -> None:
        if tag in (None, STRING_TAG):
            return
        shown = quoted(str(tag).replace("tag:yaml.org,2002:", "!!"))
        hint = "; write ${NAME} instead" if tag == "!env" else ""
        self._note(path, mark, f"the tag {shown} is not supported{hint}")

    def _bound_depth(self, depth: int, path: KeyPath, event: yaml.Event) -> None:
        if depth > MAX_DEPTH:
            self._fail(path, _mark(event), f"nested deeper than {MAX_DEPTH} levels")

    def _count(self, weight: int, path: KeyPath, mark: Mark) -> None:
        self._weight += weight
        if self._weight > MAX_NODES:
            self._fail(path, mark, f"more than {MAX_NODES} values (aliases counted at each use)")

    def _note(self, path: KeyPath, mark: Mark | None, reason: str) -> None:
        line, column = (mark.line, mark.column) if mark else (None, None)
        self.problems.append(Problem(self._file, render(path), reason, line, column))
        if len(self.problems) >= MAX_PROBLEMS:
            raise _Fatal

    def _fail(self, path: KeyPath, mark: Mark | None, reason: str) -> NoReturn:
        self._note(path, mark, reason)
        raise _Fatal


def _mark(event: yaml.Event) -> Mark:
    start = event.start_mark
    return Mark(start.line + 1, start.column + 1) if start else Mark(1, 1)


def _whole(text: str) -> str:
    """``text`` with the surrogate pairs joined that JSON's escapes spell. Raises UnicodeError for half a pair."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _height(node: Node) -> int:
    if isinstance(node, Scalar):
        return 0
    children = node.items if isinstance(node, Listing) else [entry.value for entry in node.entries]
    return 1 + max(map(_height, children), default=0)
