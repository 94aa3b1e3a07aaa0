"""The text of a document as the configuration editor shows it: secrets masked, all else byte for byte (contracts
section 2). Which values are secrets is decided in ``config.core.redaction``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from sbproxy.config.core.redaction import hides, masked_lines, without_shapes
from sbproxy.config.core.secret_forms import REDACTED
from sbproxy.config.core.tree import KeyPath
from sbproxy.config.yaml_text import MAX_DEPTH

_BARE = REDACTED.strip("[]")
_QUOTED = f'"{REDACTED}"'
"""In quotes, or it would be read as a list; block scalars become one line."""


def redacted(text: str) -> str:
    """Never raises: from where the text stops being YAML, secrets are found by the names of their keys alone."""
    walk = _Walk(text)
    shown, end = "", 0
    for start, stop in sorted(set(walk.spans())):
        if start >= end:
            shown += text[end:start] + _mask(text[start:stop])
            end = stop
    rest = text[end:] if walk.whole else masked_lines(text[end:])
    return without_shapes(shown + rest)


def mask_lines(text: str) -> tuple[int, ...]:
    """Lines (from 1) whose values hold the mask: such a text was read here and must not be stored. Comments may."""
    found: list[int] = []
    before: yaml.Event | None = None
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            bare = isinstance(before, yaml.SequenceStartEvent) and before.flow_style
            if isinstance(event, yaml.ScalarEvent) and (REDACTED in event.value or (bare and event.value == _BARE)):
                found.append(event.start_mark.line + 1 if event.start_mark else 1)
            before = event
    except (yaml.YAMLError, ValueError, OverflowError):
        pass  # whoever loads the text says what is wrong with it
    return tuple(found)


def _mask(value: str) -> str:
    """A block scalar ends with its line, which what follows needs."""
    return _QUOTED + ("\n" if value.endswith("\n") else "")


@dataclass(slots=True)
class _Frame:
    """A collection that is being read. ``key`` is the present key of a mapping, None before it; lists have none."""

    path: KeyPath
    mapping: bool
    key: str | None = None
    count: int = 0


@dataclass(slots=True)
class _Walk:
    """One pass over the parser's events; ``whole`` once the text was followed to its end."""

    text: str
    whole: bool = False
    _frames: list[_Frame] = field(default_factory=list)
    _anchors: dict[str, tuple[int, int, str]] = field(default_factory=dict)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Where in the text a secret stands, quotes included."""
        try:
            for event in yaml.parse(self.text, Loader=yaml.SafeLoader):
                yield from self._taken(event)
        except (yaml.YAMLError, ValueError, OverflowError):
            return
        self.whole = True

    def _taken(self, event: yaml.Event) -> Iterator[tuple[int, int]]:
        if isinstance(event, yaml.CollectionStartEvent):
            self._frames.append(_Frame(self._place(), isinstance(event, yaml.MappingStartEvent)))
            if len(self._frames) > MAX_DEPTH:
                raise ValueError("nested too deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            self._frames.pop()
            self._ended()
        elif isinstance(event, yaml.ScalarEvent):
            yield from self._scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            found = self._anchors.get(str(event.anchor))
            if found is not None and not self._at_key() and hides(self._place(), found[2]):
                yield found[:2]
            self._ended(str(event.anchor))

    def _scalar(self, event: yaml.ScalarEvent) -> Iterator[tuple[int, int]]:
        start, stop = self._value_of(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = (start, stop, event.value)
        if not self._at_key() and hides(self._place(), event.value):
            yield start, stop
        self._ended(event.value)

    def _value_of(self, event: yaml.ScalarEvent) -> tuple[int, int]:
        """Without anchor and tag, which stay."""
        if event.start_mark is None or event.end_mark is None:
            raise ValueError("an event without a place")
        start, stop = event.start_mark.index, event.end_mark.index
        while stop > start and self.text[start] in "&!":
            while start < stop and not self.text[start].isspace():
                start += 1
            while start < stop and self.text[start] in " \t":
                start += 1
        return start, stop

    def _at_key(self) -> bool:
        return bool(self._frames) and self._frames[-1].mapping and self._frames[-1].key is None

    def _place(self) -> KeyPath:
        if not self._frames:
            return ()
        top = self._frames[-1]
        return (*top.path, (top.key or "") if top.mapping else top.count)

    def _ended(self, value: str = "") -> None:
        """A key or a value is complete."""
        if not self._frames:
            return
        top = self._frames[-1]
        if not top.mapping:
            top.count += 1
        else:
            top.key = value if top.key is None else None
