"""Decides what a key may do while the shared ledger is away, by ``failure_posture``."""

from __future__ import annotations

from collections.abc import Callable

from sbproxy.errors.governance import GovernanceUnavailable
from sbproxy.keys.core.governance import WINDOW_S, Answer, Ask, Limits, Posture, Reservation
from sbproxy.keys.core.ledger import AccountRow, Ledger

SEEN = 10_000
"""Keys whose last books are kept in mind for an outage."""


class Outage:
    """``closed`` refuses; ``open`` lets everything in; ``degraded`` enforces the limits in this process, beginning with
    the books as they were when it last saw them. What was used meanwhile is booked in Redis when it is back.
    """

    def __init__(self, posture: Posture, failed_open: Callable[[str], None]) -> None:
        self._posture = posture
        self._failed_open = failed_open
        self._seen: dict[str, AccountRow] = {}
        self._ledger: Ledger | None = None

    def began(self) -> bool:
        """Whether this failure is the first of an outage."""
        if self._ledger is not None:
            return False
        self._ledger = Ledger(self._seen.values())
        return True

    def over(self) -> bool:
        """Whether an outage ends with this answer."""
        was, self._ledger = self._ledger, None
        return was is not None

    def saw(
        self, key_id: str, window: int, turn: int | None, span: tuple[str, int, int] | None, sums: list[int]
    ) -> None:
        """Keep in mind a key's books after a reservation; ``sums`` as the script TAKE gives them, held as if used."""
        if self._posture != "degraded":
            return
        requests, window_tokens, tokens, micro_usd, span_tokens, span_micro_usd = sums
        name, start, end = span or ("", 0, 0)
        self._seen.pop(key_id, None)
        if len(self._seen) >= SEEN:
            del self._seen[next(iter(self._seen))]
        self._seen[key_id] = AccountRow(
            key_id=key_id,
            requests=0,
            tokens=tokens,
            micro_usd=micro_usd,
            estimated_tokens=0,
            estimated_micro_usd=0,
            window=window,
            window_requests=requests,
            window_tokens=window_tokens,
            turn=turn or 0,
            span_name=name,
            span_start=start,
            span_end=end,
            span_tokens=span_tokens,
            span_micro_usd=span_micro_usd,
        )

    def answer(self, reservation_id: str, key_id: str, limits: Limits, ask: Ask, now: float, reason: str) -> Answer:
        match self._posture:
            case "closed":
                return GovernanceUnavailable(reason)
            case "open":
                self._failed_open(key_id)
                window = int(now // WINDOW_S) * WINDOW_S
                return Reservation(reservation_id, key_id, ask.tokens, ask.micro_usd, window, None, governed=False)
            case "degraded":
                if self._ledger is None:
                    self._ledger = Ledger(self._seen.values())
                answer = self._ledger.take(reservation_id, key_id, limits, ask, now)
                if isinstance(answer, Reservation):
                    answer.governed = False
                return answer

    def ended(self, reservation: Reservation, tokens: int | None, micro_usd: int) -> None:
        """``tokens`` None: it was released."""
        if self._ledger is None:
            return
        if tokens is None:
            self._ledger.release(reservation.id)
        else:
            self._ledger.settle(reservation.id, tokens, micro_usd, estimated=False)
