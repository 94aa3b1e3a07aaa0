"""The state of one request on its way through the pipeline: what was asked, where it goes, how far its answer is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sbproxy.gateway.core.request_body import Inference
from sbproxy.gateway.core.surfaces import Surface
from sbproxy.gateway.exchange import Exchange
from sbproxy.keys.core.governance import Reservation
from sbproxy.keys.core.record import KeyRecord
from sbproxy.modelhost.core.status import Priority
from sbproxy.observe.core.record import RequestRecord


@dataclass(slots=True)
class Governed:
    """What a request's key brings with it. ``price``: micros for a million prompt and answer tokens. ``credential``:
    the upstream header that is sent instead of the provider's own."""

    key: KeyRecord
    priority: Priority = "standard"
    reservation: Reservation | None = None
    price: tuple[int, int] | None = None
    credential: tuple[bytes, bytes] | None = None


class Call:
    """``started`` once a streamed head is out (nothing can be replayed then), ``answered`` once the answer is whole.

    ``model`` is the public name, ``path`` the API path without its ``/v1``. A stream that begins may take
    ``stretch_s`` longer than other answers.
    """

    __slots__ = (
        "answered", "clock", "exchange", "governed", "inference", "model", "path", "record", "request_id", "started",
        "stretch_s", "surface",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, record: RequestRecord, request_id: str, clock: Callable[[], float]) -> None:
        self.exchange = exchange
        self.record = record
        self.request_id = request_id
        self.clock = clock
        self.model = ""
        self.path = ""
        self.surface: Surface = "models"
        self.inference: Inference
        self.stretch_s: float | None = None
        self.started = False
        self.answered = False
        self.governed: Governed | None = None

    def elapsed_ms(self) -> float:
        """Milliseconds since the first byte of the request."""
        return (self.clock() - self.exchange.request.received_at) * 1000
