"""Remembers whether the key store answers, for the health report; says it in the log once an outage."""

from __future__ import annotations

import logging

from sbproxy.errors.keys import KeyStoreFailed

LOG = logging.getLogger("sbproxy.keys")
ASK_AGAIN_S = 1.0
"""For how long a store that just failed is taken to be still down."""


class Outage:
    def __init__(self) -> None:
        self.reason: str | None = None
        """Why the store cannot be asked, or None while it answers."""
        self.refused = 0
        """How many lookups it did not answer."""

        self._ask_again_at = 0.0

    def lasts(self, now: float) -> bool:
        """Whether asking the store now would only cost its time-out again. ``now`` is monotonic."""
        return self.reason is not None and now < self._ask_again_at

    def began(self, error: KeyStoreFailed, now: float) -> None:
        self._ask_again_at = now + ASK_AGAIN_S
        self.refused += 1
        if self.reason is None:
            LOG.error("%s; keys that are not cached cannot be checked", error)
        self.reason = str(error)

    def ended(self) -> None:
        if self.reason is not None:
            LOG.info("the key store answers again")
            self.reason = None
