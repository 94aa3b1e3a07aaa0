"""The only writer of stdout: one JSON object, plain lines, or a table. Nothing here carries a control byte."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sbproxy.observe.core.scrub import scrub

ENVELOPE_VERSION = 1
LINE_LIMIT = 1 << 16


def envelope(command: str, fields: Mapping[str, Any]) -> None:
    """``{schema_version, command, …fields}`` as one object (contracts section 9)."""
    document({"schema_version": ENVELOPE_VERSION, "command": command, **fields})


def document(value: Mapping[str, Any]) -> None:
    """One JSON object; every control byte and every character beyond ASCII is escaped."""
    # json leaves DEL alone, which a terminal does not.
    _write(json.dumps(value, ensure_ascii=True, indent=2).replace("\x7f", "\\u007f") + "\n")


def lines(*texts: str) -> None:
    """Plain lines, each scrubbed of what would steer a terminal."""
    _write("".join(f"{scrub(text, LINE_LIMIT)}\n" for text in texts))


def block(text: str) -> None:
    """Several lines that belong together, such as a YAML document; line feeds stay."""
    lines(*text.removesuffix("\n").split("\n"))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset()) -> None:
    """Columns under ``headers``; those named in ``right`` are aligned right.

    In a pipe no cell is wrapped or cut, so that a script finds a row on a line. On a terminal that is too narrow,
    cells wrap inside their column.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
    piped = not sys.stdout.isatty()
    for header in headers:
        grid.add_column(header, justify="right" if header in right else "left", no_wrap=piped, overflow="fold")
    for row in rows:
        grid.add_row(*[Text(scrub(cell)) for cell in row])
    width = 10_000 if piped else shutil.get_terminal_size().columns
    console = Console(file=sys.stdout, width=width, color_system=None, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(grid)
    _write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
