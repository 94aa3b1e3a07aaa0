"""What a reload cannot apply: listeners and the admin block (contracts section 0, row 13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from sbproxy.config.core.document import SbConfig
from sbproxy.config.core.key_rules import uses_keys
from sbproxy.config.core.tree import KeyPath, render

RESTART_REQUIRED: tuple[KeyPath, ...] = (
    ("proxy", "http_bind_port"),
    ("proxy", "bind_address"),
    ("proxy", "admin"),
    ("proxy", "key_management"),
)


def restart_required(running: SbConfig, candidate: SbConfig) -> tuple[str, ...]:
    """Key paths that differ and need a restart, in the order of the document; empty when a reload will do."""
    found: list[str] = []
    for path in RESTART_REQUIRED:
        before: Any = running
        after: Any = candidate
        for step in path:
            before, after = getattr(before, str(step)), getattr(after, str(step))
        found.extend(render(changed) for changed in differences(before, after, path))
    # The ledger of what keys have used is opened at the start.
    if uses_keys(candidate) and not uses_keys(running):
        found.append("origins (the first use of virtual keys)")
    return tuple(found)


def differences(before: Any, after: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Where two values differ, as deep as blocks, maps and lists of equal length go. Tells no values."""
    if isinstance(before, BaseModel) and type(before) is type(after):
        for name in type(before).model_fields:
            yield from differences(getattr(before, name), getattr(after, name), (*path, name))
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from differences(before.get(key), after.get(key), (*path, key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, (*path, index))
    elif before != after:
        yield path
