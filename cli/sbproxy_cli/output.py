"""The only writer of stdout: one JSON object, plain lines, or a table. Nothing here carries a control byte."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
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

    In a pipe no cell is wrapped or cut, so that a script finds a row on a line. On a terminal that is too narrow the
    last column wraps, or the first one gets a line of its own, or each row becomes a paragraph.
    """
    from sbproxy_cli.tables import table_lines

    cells = [[scrub(cell, LINE_LIMIT) for cell in row] for row in rows]
    _write("".join(f"{line}\n" for line in table_lines(headers, cells, right=right, width=_width())))


def outline(*texts: str) -> None:
    """As :func:`lines`; on a terminal what is too long goes on deeper than it began, words and names unbroken."""
    width = _width()
    if width is None:
        lines(*texts)
        return
    for text in texts:
        deeper = " " * (len(text) - len(text.lstrip()) + 4)
        lines(*textwrap.wrap(text, width, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False))


def _width() -> int | None:
    """Columns of the terminal; None in a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
