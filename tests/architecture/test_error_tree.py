"""Every foreseen failure has a stable code, text built from its fields, and a place in each surface's table."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
import typing
from typing import Any

import pytest

import sbproxy.errors
from sbproxy.errors import SbproxyError, leaves

for _module in pkgutil.iter_modules(sbproxy.errors.__path__, "sbproxy.errors."):
    importlib.import_module(_module.name)

LEAVES = sorted(leaves(), key=lambda leaf: leaf.__qualname__)


def sample(annotation: Any) -> Any:
    """A plausible value for a field's type, so that a leaf can be built without knowing it."""
    if annotation is str:
        return "sample"
    if annotation in (int, float):
        return annotation(1)
    if annotation is bool:
        return False
    if typing.get_origin(annotation) is tuple:
        return ()
    if type(None) in typing.get_args(annotation):
        return None
    raise AssertionError(f"teach this test a value for {annotation!r}")


def build(leaf: type[SbproxyError]) -> SbproxyError:
    hints = typing.get_type_hints(leaf)
    fields = [field for field in dataclasses.fields(leaf) if field.init]  # type: ignore[arg-type]
    return leaf(**{field.name: sample(hints[field.name]) for field in fields})


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_leaf_has_a_code_and_text_from_its_fields(leaf: type[SbproxyError]) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", leaf.code), leaf
    assert dataclasses.is_dataclass(leaf), f"{leaf.__name__} carries no typed fields"
    text = str(build(leaf))
    assert text.strip() == text
    assert len(text) > 5


def test_codes_are_unique_within_a_branch() -> None:
    seen: dict[tuple[str, str], str] = {}
    for leaf in LEAVES:
        key = (leaf.__module__, leaf.code)
        assert key not in seen, f"{leaf.__name__} and {seen[key]} share {leaf.code}"
        seen[key] = leaf.__name__
