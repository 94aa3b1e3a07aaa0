"""Decides which paths of a catalog may become files below a folder, and which two of them are one place."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 1024
"""Of a file inside a snapshot; leaves room below the system's limit for the path of the store."""


def safe_relative(path: str) -> bool:
    """Whether ``path`` stays below the folder that it is joined to, on every platform, and a file system takes it."""
    if len(path) > MAX_PATH_BYTES or not path.isprintable() or "\\" in path or ":" in path:
        return False
    parts = path.split("/")
    plain = all(part not in ("", ".", "..") and len(part.encode()) <= MAX_NAME_BYTES for part in parts)
    return plain and len(path.encode()) <= MAX_PATH_BYTES


def one_place(path: str) -> str:
    """The same for two paths that some file system keeps in one place: one without case, as macOS has."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def clashes(paths: Sequence[str], taken: str) -> dict[int, tuple[int | None, str]]:
    """What cannot lie in one folder: index → (index of the other, ``None`` for ``taken``; why)."""
    places = [one_place(path) for path in paths]
    first: dict[str, int | None] = {taken: None}
    below: dict[str, int] = {}
    found: dict[int, tuple[int | None, str]] = {}
    for index, place in enumerate(places):
        for end, char in enumerate(place):
            if char == "/":
                below.setdefault(place[:end], index)
        if place in first:
            found[index] = (first[place], "is already taken")
        first.setdefault(place, index)
    for index, place in enumerate(places):
        if place in below:
            found.setdefault(index, (below[place], "is a file and a folder at once"))
    return found
