"""Follows one pull: counts bytes, reports them at a bounded rate, and ends the pull when its caller asks."""

from __future__ import annotations

import threading
import time

from sbproxy.artifacts.core.model import ProgressSink, PullPhase, PullProgress
from sbproxy.errors.artifacts import PullCancelled

REPORT_EVERY_S = 0.1
_RANK: dict[PullPhase, int] = {"queued": 0, "downloading": 1, "verifying": 2, "ready": 3}


class PullTracker:
    """Progress of one artifact, in bytes over all its files. Neither bytes nor phases ever go back (section 18)."""

    def __init__(
        self, subject: str, total_bytes: int, sink: ProgressSink | None, cancelled: threading.Event | None
    ) -> None:
        self.subject = subject
        self.total_bytes = total_bytes
        self.fetched_bytes = 0
        self._sink = sink
        self._cancelled = cancelled or threading.Event()
        self._phase: PullPhase = "queued"
        self._completed = 0
        self._finished_files = 0
        self._reported_at = float("-inf")

    @property
    def remaining_bytes(self) -> int:
        return self.total_bytes - self._completed

    def check(self) -> None:
        """Raises PullCancelled once the caller has asked for the end."""
        if self._cancelled.is_set():
            raise PullCancelled(self.subject)

    def pause(self, seconds: float) -> None:
        """Sleep, but not past a cancellation."""
        self._cancelled.wait(seconds)
        self.check()

    def queued(self) -> None:
        """One step of waiting for another holder of the same work."""
        self._report("queued", None)
        self.pause(0.05)

    def downloading(self, file: str, file_bytes: int) -> None:
        """``file_bytes`` of ``file`` are here now."""
        self.check()
        self._advance(self._finished_files + file_bytes)
        self._report("downloading", file)

    def finished(self, file: str, file_bytes: int) -> None:
        self._finished_files += file_bytes
        self.downloading(file, 0)

    def wait_for_turn(self) -> None:
        """One step of waiting for the store's mutation lock, which others hold for moments only."""
        self.pause(0.05)

    def verified(self, file_bytes: int) -> None:
        """A file of that many bytes was hashed again in a full check."""
        self._finished_files += file_bytes
        self._advance(self._finished_files)

    def verifying(self, file: str | None = None) -> None:
        self.check()
        self._report("verifying", file)

    def ready(self) -> None:
        self._advance(self.total_bytes)
        self._report("ready", None)

    def _advance(self, completed: int) -> None:
        self._completed = max(self._completed, min(completed, self.total_bytes))

    def _report(self, phase: PullPhase, file: str | None) -> None:
        moved = _RANK[phase] > _RANK[self._phase]
        if moved:
            self._phase = phase
        now = time.monotonic()
        if self._sink is None or not (moved or now - self._reported_at >= REPORT_EVERY_S):
            return
        self._reported_at = now
        self._sink(PullProgress(self._phase, self._completed, self.total_bytes, file))
