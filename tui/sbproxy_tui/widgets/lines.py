"""Plain lines: the status line, the notice and the job list. They repaint only when the text differs."""

from __future__ import annotations

from textual.widgets import Static


class Lines(Static):
    """Text without markup: what stands in it came over the wire."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__("", id=id, markup=False)
        self.shown = ""

    def show(self, text: str) -> None:
        if text != self.shown:
            self.shown = text
            self.update(text)
