"""Transfer progress on stderr: a bar on a terminal, whole lines elsewhere (contracts section 9)."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sbproxy.observe.core.scrub import scrub
from sbproxy_cli import diagnostics

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_EVERY_S = 2.0


def progress_line(subject: str, state: str, done: int, total: int | None) -> str:
    """``<subject>: <State> <done> / <total> bytes (<pct>%)``; without a total the tail is left out."""
    if not total:
        return f"{subject}: {state.capitalize()} {done} bytes" if done else f"{subject}: {state.capitalize()}"
    return f"{subject}: {state.capitalize()} {done} / {total} bytes ({done * 100 // total}%)"


class TransferProgress:
    """Use as a context manager; ``update`` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._lines: dict[str, tuple[str, str, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def update(self, subject: str, state: str, done: int, total: int | None) -> None:
        """Show where ``subject`` stands; bytes, ``total`` None while unknown."""
        with self._lock:
            if diagnostics.terminal():
                self._draw(subject, state, done, total)
            else:
                self._print(subject, state, done, total)

    def finish(self, subject: str, text: str) -> None:
        """Replace the bar of ``subject``, if it has one, with a line that stays."""
        with self._lock:
            if self._bars is not None and subject in self._tasks:
                self._bars.remove_task(self._tasks.pop(subject))
        self.say(text)

    def say(self, text: str) -> None:
        """A line that stays, above the bars."""
        if self._bars is None:
            diagnostics.note(text)
        else:
            self._bars.console.print(scrub(text), markup=False, highlight=False)

    def _draw(self, subject: str, state: str, done: int, total: int | None) -> None:
        if self._bars is None:
            self._bars = _bars()
            self._bars.start()
        if subject not in self._tasks:
            self._tasks[subject] = self._bars.add_task("", total=total)
        label = f"{subject}: {state.capitalize()}"
        self._bars.update(self._tasks[subject], description=scrub(label), completed=done, total=total)

    def _print(self, subject: str, state: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        line = progress_line(subject, state, done, total)
        last = self._lines.get(subject, ("", "", 0.0))
        if state != last[0] or (line != last[1] and now - last[2] >= LINE_EVERY_S):
            self._lines[subject] = (state, line, now)
            diagnostics.note(line)


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=diagnostics.stream())
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=console,
    )
