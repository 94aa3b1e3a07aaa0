"""Opens HTTP exchanges for the fetchers: one GET, its answer's head, its body as a stream, an end at any time.

Which answers are good is decided by ``core.answer``; the conversation itself is ``sbproxy.artifacts.conversation``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from sbproxy.artifacts.core.answer import Head
from sbproxy.artifacts.credentials import Token
from sbproxy.artifacts.progress import PullTracker


class BrokenOff(Exception):
    """The conversation ended before its end. ``final``: asking again would end the same way."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final = final


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds until a connection must stand, and between two reads."""

    connect_s: float = 10.0
    read_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """An answer whose body has not been read yet. Reading raises BrokenOff and PullCancelled."""

    head: Head
    body: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class HttpTransport:
    """Opens exchanges. Proxies and certificate files come from the process environment, as httpx reads them."""

    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        # Their request lines hold signed addresses, and httpcore's debug lines hold the Authorization header.
        for name in ("httpx", "httpcore"):
            logging.getLogger(name).setLevel(logging.WARNING)

    @contextmanager
    def get(
        self, url: str, headers: Mapping[str, str], token: Token | None, tracker: PullTracker
    ) -> Iterator[Exchange]:
        """One GET of ``url``; ``token`` goes to its origin only. Raises BrokenOff, PullCancelled."""
        # httpx is loaded by the first fetch: commands that find the cache filled do not pay for it.
        from sbproxy.artifacts.conversation import Conversation

        conversation = Conversation(url, dict(headers), token, self.timeouts)
        conversation.start()
        try:
            head = conversation.next_item(tracker)
            if not isinstance(head, Head):
                raise BrokenOff("the connection ended before an answer")
            yield Exchange(head, conversation.body(tracker))
        finally:
            conversation.abandon()
