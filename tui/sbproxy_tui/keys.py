"""The one key table: id, key, action, words. Bindings, footer and documentation are made from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """``id`` is API: users rebind by it. ``footer`` keys stand in the bottom row."""

    id: str
    key: str
    action: str
    words: str
    footer: bool = True


KEYS: tuple[Key, ...] = (
    Key("deployment.load", "l", "load", "Load"),
    Key("deployment.stop", "x", "stop", "Stop"),
    Key("deployment.reset", "c", "reset", "Clear crash"),
    Key("refresh", "r", "refresh", "Refresh"),
    Key("quit", "ctrl+q", "quit", "Quit"),
    Key("list.down", "j", "cursor_down", "Down", footer=False),
    Key("list.up", "k", "cursor_up", "Up", footer=False),
)
