"""What one drain found and left behind (contracts section 19). Counted by the deployment, told by its journal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Drain:
    """Grows while the drain goes on; final once the engine is gone. Everybody who waits for one drain shares it.

    ``timed_out``: the deadline passed over active requests. ``remaining_active`` are those whose answers were cut, by
    the deadline or by the end of the engine.
    """

    active_at_start: int = 0
    cancelled_queued: int = 0
    remaining_active: int = 0
    timed_out: bool = False

    @classmethod
    def of_all(cls, drains: list[Drain]) -> Drain:
        """The drains of all replicas of one deployment, which share a queue."""
        return cls(
            active_at_start=sum(each.active_at_start for each in drains),
            cancelled_queued=max((each.cancelled_queued for each in drains), default=0),
            remaining_active=sum(each.remaining_active for each in drains),
            timed_out=any(each.timed_out for each in drains),
        )

    @property
    def note(self) -> str | None:
        """What the job of this drain must not hide; None when every request ended by itself."""
        if self.remaining_active == 0:
            return None
        why = "the drain deadline passed" if self.timed_out else "the engine ended before they did"
        return f"{self.remaining_active} of {self.active_at_start} active requests were cut: {why}"

    def __str__(self) -> str:
        return (
            f"active_at_start={self.active_at_start} cancelled_queued={self.cancelled_queued}"
            f" remaining_active={self.remaining_active} timed_out={str(self.timed_out).lower()}"
        )
