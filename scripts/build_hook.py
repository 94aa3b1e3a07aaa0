"""Hatch build hook: writes which commit was built, and when, for ``sbproxy --version``."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildFacts(BuildHookInterface[Any]):
    """SOURCE_DATE_EPOCH is honoured, so that a rebuild of the same commit gives the same bytes."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        path = Path(self.root, "sbproxy", "_build.py")
        moment = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
        built = time.strftime("%Y-%m-%d", moment)
        path.write_text(
            f'"""Written by the build."""\n\nREVISION = "{revision(self.root)}"\nBUILT = "{built}"\n', encoding="utf-8"
        )
        build_data["artifacts"].append("sbproxy/_build.py")


def revision(root: str) -> str:
    """The short commit id, ``unknown`` outside a checkout."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return asked.stdout.strip()
