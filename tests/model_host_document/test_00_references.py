"""The index of document 1: every heading has its file, and every test that a heading points to exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HEADINGS = [
    "current_boundary",
    "canonical_configuration",
    "dispatch_and_cold_start",
    "desired_state_authority",
    "file_managed_edits",
    "catalog_and_deployment_api",
    "deployment_fields",
    "serve_model_settings",
    "value_delivered",
    "artifacts_and_cache_safety",
    "lifecycle_commands",
    "managed_engines",
    "admission_and_residency",
    "status_and_operations",
    "reload_behavior",
    "one_command_local_run",
    "migrating_from_provider_serve",
]
FILES = [HERE / f"test_{number:02}_{heading}.py" for number, heading in enumerate(HEADINGS, 1)]
WAITS_FOR = {"cluster", "GPU", "M3", "M4", "macOS", "compression"}


@cache
def named_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def table(path: Path, name: str) -> dict[str, str]:
    """A module-level dictionary of literals, read without running the module."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                literal: dict[str, str] = ast.literal_eval(value)
                return literal
    return {}


def test_every_heading_has_its_file_and_no_other_is_there() -> None:
    """The files of this folder are the headings of the page, in its order."""
    assert sorted(HERE.glob("test_*.py")) == [HERE / "test_00_references.py", *FILES]


@pytest.mark.parametrize("path", FILES, ids=HEADINGS)
def test_what_a_heading_points_to_exists(path: Path) -> None:
    """Each promise that is proved elsewhere names a test that is there, and each that waits names what it waits for."""
    references = table(path, "PROVED_ELSEWHERE")
    for promise, reference in references.items():
        file, _, test = reference.partition("::")
        assert test in named_in(ROOT / file), f"{promise}: {reference}"
    waiting = table(path, "NOT_ON_ONE_MACHINE")
    assert set(waiting.values()) <= WAITS_FOR, waiting
    assert not set(references) & set(waiting)


@pytest.mark.parametrize("path", FILES, ids=HEADINGS)
def test_every_test_says_its_promise(path: Path) -> None:
    """A reader finds each promise in words, either at a test or in a table."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    silent = [node.name for node in functions if node.name.startswith("test_") and not ast.get_docstring(node)]
    assert not silent
    assert named_in(path) or table(path, "PROVED_ELSEWHERE")
