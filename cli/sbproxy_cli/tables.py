"""Lays a table out in lines: no colour, no box, and a row stays readable where the terminal is too narrow for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

MIN_LAST = 20
"""A last column narrower than this is no place for a sentence."""
INDENT = "  "

Rows = Sequence[Sequence[str]]


def table_lines(headers: Sequence[str], rows: Rows, *, right: frozenset[str], width: int | None) -> list[str]:
    """``width`` None: as wide as it needs to be. Cells must be free of control characters."""
    widths = [max(cell_len(cell) for cell in column) for column in zip(headers, *rows, strict=True)]
    natural = sum(widths) + len(widths) - 1
    if width is None or natural <= width:
        return _grid(headers, rows, right, natural)
    if natural - widths[-1] + MIN_LAST <= width:
        return _grid(headers, rows, right, width, wrap_last=True)
    rest = natural - widths[0] - 1 + len(INDENT)
    if rest <= width:
        return _stacked(headers, rows, right, rest)
    return _records(headers, rows, width)


def _records(headers: Sequence[str], rows: Rows, width: int) -> list[str]:
    """The first cell of each row on a line of its own, the others under it, each behind its header."""
    lines: list[str] = []
    for row in rows:
        lines += [row[0], ""]
        for header, cell in zip(headers[1:], row[1:], strict=True):
            pair = f"{header} {cell}"
            joined = f"{lines[-1]}  {pair}" if lines[-1] else INDENT + pair
            if cell_len(joined) <= width or not lines[-1]:
                lines[-1] = joined
            else:
                lines.append(INDENT + pair)
    return [line.rstrip() for line in lines if line]


def _stacked(headers: Sequence[str], rows: Rows, right: frozenset[str], width: int) -> list[str]:
    """The first cell of each row on a line of its own, the others indented under it."""
    below = _grid(headers[1:], [row[1:] for row in rows], right, width)
    above = [headers[0], *[row[0] for row in rows]]
    return [line for name, cells in zip(above, below, strict=True) for line in (name, INDENT + cells)]


def _grid(
    headers: Sequence[str],
    rows: Rows,
    right: frozenset[str],
    width: int,
    *,
    wrap_last: bool = False,
) -> list[str]:
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
    for number, header in enumerate(headers, 1):
        wraps = wrap_last and number == len(headers)
        justify: Literal["left", "right"] = "right" if header in right else "left"
        grid.add_column(header, justify=justify, no_wrap=not wraps, overflow="fold")
    for row in rows:
        grid.add_row(*[Text(cell) for cell in row])
    console = Console(width=width, color_system=None, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(grid)
    return [line.rstrip() for line in captured.get().splitlines()]
