"""One thing that a rule has found, before it gets its file and line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sbproxy.config.core.tree import KeyPath


@dataclass(frozen=True, slots=True)
class Finding:
    """``depends_on`` are the values that the rule read beside the one at ``path``.

    With ``of_name`` only the key itself was looked at, so no wrong value can be the cause.
    """

    path: KeyPath
    reason: str
    near: str | None = None
    allowed: tuple[str, ...] = ()
    depends_on: tuple[KeyPath, ...] = ()
    of_name: bool = False

    def doubtful(self, wrong: Iterable[KeyPath]) -> bool:
        """Whether it may only follow from a value that is itself ``wrong`` and was replaced for the time being."""
        if self.of_name:
            return False
        return any(
            _under(self.path, gone) or any(_under(read, gone) or _under(gone, read) for read in self.depends_on)
            for gone in wrong
        )


def _under(path: KeyPath, ancestor: KeyPath) -> bool:
    return path[: len(ancestor)] == ancestor
