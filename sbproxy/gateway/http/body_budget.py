"""Decides whether more bytes of request bodies may be held: one budget for all connections of a listener.

Each connection's own bounds are in ``limits``; a body counts from its first byte until its request is over.
"""

from __future__ import annotations


class BodyBudget:
    """``held`` is in bytes. A body that is alone may be larger than the budget: how large is its origin's to say."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.held = 0
        self.limit = limit

    def fits(self, size: int, own: int) -> bool:
        """Whether ``size`` more bytes may be held by a request that holds ``own``."""
        return self.held + size <= self.limit or self.held == own

    def take(self, size: int, own: int) -> bool:
        """Hold ``size`` more bytes; False when there is no room, and nothing more is held then."""
        if not self.fits(size, own):
            return False
        self.held += size
        return True

    def give_back(self, size: int) -> None:
        self.held -= size
