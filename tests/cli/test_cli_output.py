"""Nothing that came over the wire steers a terminal, and tables stay readable at any width."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbproxy_cli import diagnostics, output
from sbproxy_cli.models.listing import LIST_HEADER
from sbproxy_cli.progress import progress_line
from sbproxy_cli.sizes import human_size
from sbproxy_cli.tables import table_lines

HOSTILE = "name\x1b]0;owned\x07\x1b[31mred\r\x00\x9b2J\u202egpj\x7f"
CONTROL = {*range(0x20), 0x7F, *range(0x80, 0xA0)}


def controls(text: str) -> set[int]:
    return {ord(char) for char in text} & (CONTROL - {0x0A})


def test_lines_and_tables_are_scrubbed(capsys: pytest.CaptureFixture[str]) -> None:
    output.lines(f"model {HOSTILE}")
    output.table(("A", "B"), [(HOSTILE, "x"), ("y", HOSTILE)])
    diagnostics.note(HOSTILE)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert controls(text) == set()
        assert "owned" not in text
        assert "\u202e" not in text
    assert "name" in shown.out


def test_json_is_one_object_without_control_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    output.envelope("models.list", {"models": [{"id": HOSTILE, "note": "caf\u00e9"}]})
    text = capsys.readouterr().out
    assert controls(text) == set()
    assert text.isascii()
    assert json.loads(text) == {
        "schema_version": 1,
        "command": "models.list",
        "models": [{"id": HOSTILE, "note": "caf\u00e9"}],
    }


ROWS = [
    ("smollm2-135m-instruct", "q4_1", "gguf", "93.8 MiB", "preview", "fits", "0.12", "llama_cpp", "cached"),
    ("llama-3.1-8b-instruct", "q4_k_m", "gguf", "4.6 GiB", "preview", "too-large", "5.80", "llama_cpp", "not-pulled"),
    ("only-cuda", "-", "-", "-", "-", "unknown", "-", "-", "not-pulled"),
]
RIGHT = frozenset({"SIZE", "VRAM(GiB)"})


def test_a_piped_table_has_a_line_a_row_and_stable_columns() -> None:
    lines = table_lines(LIST_HEADER, ROWS, right=RIGHT, width=None)
    assert len(lines) == 1 + len(ROWS)
    assert lines[0].split() == list(LIST_HEADER)
    for name in ("VARIANT", "FORMAT", "STABILITY", "FIT", "ENGINE", "STATUS"):
        at = lines[0].index(name)
        assert all(line[at - 1] == " " and line[at] != " " for line in lines[1:]), name


@pytest.mark.parametrize("width", [80, 90, 120])
def test_the_list_is_readable_at_80_columns(width: int) -> None:
    lines = table_lines(LIST_HEADER, ROWS, right=RIGHT, width=width)
    assert all(len(line) <= width for line in lines)
    whole = "\n".join(lines)
    for row in ROWS:
        assert all(cell in whole for cell in row), "a cell was cut"


@pytest.mark.parametrize("width", [40, 60])
def test_a_list_that_fits_no_more_becomes_paragraphs(width: int) -> None:
    lines = table_lines(LIST_HEADER, ROWS, right=RIGHT, width=width)
    assert all(len(line) <= width for line in lines)
    assert [line for line in lines if not line.startswith(" ")] == [row[0] for row in ROWS]
    whole = "\n".join(lines)
    for row in ROWS:
        assert all(f"{header} {cell}" in whole for header, cell in zip(LIST_HEADER[1:], row[1:], strict=True))


def test_an_outline_goes_on_deeper_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "  archive: incomplete pin, another build needs its version and the sha256 of its release archive"
    output.outline("engines", text)
    assert capsys.readouterr().out == f"engines\n{text}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    output.outline("engines", text)
    assert capsys.readouterr().out == (
        "engines\n"
        "  archive: incomplete pin, another build needs its version\n"
        "      and the sha256 of its release archive\n"
    )


def test_a_long_last_column_wraps_between_words() -> None:
    reason = "crash_loop: the engine ended five times within a minute and is held until it is reset by an operator"
    lines = table_lines(("DEPLOYMENT", "REASON"), [("local", reason)], right=frozenset(), width=40)
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(" ".join(lines[1:]).split()) == f"local {reason}"


cells = st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), max_size=30)


@given(st.lists(st.tuples(cells, cells, cells), max_size=5), st.one_of(st.none(), st.integers(24, 200)))
def test_no_table_loses_a_character(rows: list[tuple[str, str, str]], width: int | None) -> None:
    drawn = "".join("".join(table_lines(("A", "B", "C"), rows, right=frozenset(), width=width)).split())
    for row in rows:
        for cell in row:
            for char in set("".join(cell.split())):
                assert drawn.count(char) >= cell.count(char)


@pytest.mark.parametrize(
    ("state", "done", "total", "line"),
    [
        ("downloading", 1024, 98362432, "m:q4: Downloading 1024 / 98362432 bytes (0%)"),
        ("verifying", 98362432, 98362432, "m:q4: Verifying 98362432 / 98362432 bytes (100%)"),
        ("queued", 0, None, "m:q4: Queued"),
        ("fetching", 7, None, "m:q4: Fetching 7 bytes"),
    ],
)
def test_progress_line(state: str, done: int, total: int | None, line: str) -> None:
    assert progress_line("m:q4", state, done, total) == line


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (98362432, "93.8 MiB"),
        (19762149024, "18.4 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert human_size(size) == text
