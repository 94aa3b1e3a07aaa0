"""One thing that a rule has found, before it gets its file and line."""

from __future__ import annotations

from dataclasses import dataclass

from sbproxy.config.core.tree import KeyPath


@dataclass(frozen=True, slots=True)
class Finding:
    """``depends_on`` are further values that the rule looked at; where one of them is itself wrong, the finding is

    dropped, since it may only follow from the repair. ``of_block``: the same holds for every neighbour in the block.
    """

    path: KeyPath
    reason: str
    near: str | None = None
    allowed: tuple[str, ...] = ()
    depends_on: tuple[KeyPath, ...] = ()
    of_block: bool = True
    of_name: bool = False
    """Only the key itself was looked at, so nothing else can be the cause."""

    def doubtful(self, dropped: frozenset[KeyPath]) -> bool:
        """Whether one of the values that were left out may be the cause."""
        if self.of_name:
            return False
        seen = (self.path, *self.depends_on)
        return any(
            path[: len(gone)] == gone or (self.of_block and gone[:-1] == path[:-1]) for gone in dropped for path in seen
        )
