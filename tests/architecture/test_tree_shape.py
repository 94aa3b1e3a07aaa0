"""Sizes and habits of architecture.md that a linter does not know."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for top in ("sbproxy", "cli", "tui") for path in (ROOT / top).rglob("*.py"))
BANNED_NAMES = {"utils", "helpers", "common", "base", "manager", "misc"}


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert text.count("\n") <= 400, "split it: a module decides or does one thing"
    assert path.stem not in BANNED_NAMES, "a module is the noun that it decides about"
    if text.strip():
        assert ast.get_docstring(tree), "say what the module decides or does"
    for function in functions(tree):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        assert length <= 50, f"{function.name} has {length} lines"
        assert function.returns is not None, f"{function.name} has no return type"


def test_the_owners_top_level_names_hold_something_real() -> None:
    for name in ("sbproxy", "tui", "cli", "tests", "snapshots", "examples", "docs"):
        assert any(path.is_file() and path.stat().st_size > 200 for path in (ROOT / name).rglob("*")), name
    assert (ROOT / "pyproject.toml").is_file()
