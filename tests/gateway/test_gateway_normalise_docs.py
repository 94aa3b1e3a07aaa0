"""The list of repairs and refusals in docs/gateway.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.memory import chat
from sbproxy.errors.gateway import RequestRefused
from sbproxy.gateway.core.normalise import EngineLimits, normalise_chat

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (?P<what>.+?) \| `(?P<given>\{.*?\})` \| `(?P<then>.*?)` \|$", re.MULTILINE)
LIMITS = EngineLimits(slots=2, context_tokens=4096)


def rows(heading: str) -> list[tuple[Any, str]]:
    section = PAGE.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    table = [line for line in section.splitlines() if line.startswith("| ")][1:]
    found = [(orjson.loads(row["given"]), row["then"]) for row in ROW.finditer(section)]
    assert len(found) == len(table) > 10, "a row that cannot be read"
    return found


@pytest.mark.parametrize(("given", "then"), rows("Repaired"))
def test_repaired(given: dict[str, Any], then: str) -> None:
    assert normalise_chat(chat(**given), "qwen", LIMITS) == chat(**orjson.loads(then))


@pytest.mark.parametrize(("given", "param"), rows("Refused"))
def test_refused(given: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        normalise_chat(chat(**given), "qwen", LIMITS)
    assert getattr(caught.value, "param", None) == param
