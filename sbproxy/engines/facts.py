"""What engine builds said about themselves, remembered on disk under a digest, because asking takes seconds.

Who asks, and what makes two builds the same one, is the caller's decision.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FIELDS = frozenset({"names", "valued", "version"})


class FactMemory:
    """``names``, ``valued`` and ``version`` of builds; ``folder`` is ours. Blocking."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, key: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The facts under ``key`` (hex), asked for once."""
        path = self._folder / f"{key}.json"
        facts = _read(path)
        if facts is None:
            facts = ask()
            # Without a writable folder the build is asked again at the next start; it still runs.
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                partial = path.with_suffix(f".{os.getpid()}.tmp")
                partial.write_text(json.dumps(facts), encoding="utf-8")
                partial.replace(path)
        return facts


def _read(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(facts, dict) and set(facts) >= _FIELDS:
            return facts
    return None
