"""Where a relative path of sb.yml points: always from the directory of the file that says it."""

from __future__ import annotations

from pathlib import PurePath, PurePosixPath


def absolute(written: str, directory: PurePath) -> str:
    """``written`` as an absolute path. ``directory`` is absolute; ``..`` is kept, as links may stand before it."""
    return str(PurePosixPath(directory) / written)
