"""Compares text with a committed file under ``snapshots/``; ``UPDATE_SNAPSHOTS=1`` writes the files instead."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2] / "snapshots"


def check_snapshot(name: str, text: str) -> None:
    """``name`` is relative to ``snapshots/``, for example ``cli/models-ps.txt``."""
    path = ROOT / name
    if not text.endswith("\n"):
        text += "\n"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    assert path.is_file(), f"snapshots/{name} does not exist; run the test once with UPDATE_SNAPSHOTS=1"
    assert text == path.read_text(encoding="utf-8"), f"snapshots/{name} differs; look, then UPDATE_SNAPSHOTS=1"


def check_json_snapshot(name: str, value: Any) -> None:
    """As :func:`check_snapshot`, for a decoded JSON value: keys stay in the order in which they came."""
    check_snapshot(name, json.dumps(value, indent=2, ensure_ascii=False))
