"""The version line: `sbproxy <semver> (rev <sha>, built <yyyy-mm-dd>)`. Imports nothing heavy: it has 120 ms."""

from __future__ import annotations

import os
import sys

import sbproxy


def version_line() -> str:
    """Revision and date come from what the installer recorded, else they are `unknown`."""
    revision, built = _recorded()
    return f"sbproxy {sbproxy.__version__} (rev {revision}, built {built})"


def _recorded() -> tuple[str, str]:
    # importlib.metadata would cost more than everything else of this path together.
    folder = f"sbproxy-{sbproxy.__version__}.dist-info"
    for entry in sys.path:
        try:
            with open(os.path.join(entry, folder, "direct_url.json"), encoding="utf-8") as record:  # noqa: PTH118, PTH123
                text = record.read(4096)
        except OSError:
            continue
        return _revision(text), "unknown"
    return "unknown", "unknown"


def _revision(direct_url: str) -> str:
    """The commit of an installation from a repository (the installer's direct_url.json)."""
    import json

    try:
        commit = json.loads(direct_url)["vcs_info"]["commit_id"]
    except (ValueError, KeyError, TypeError):
        return "unknown"
    return str(commit)[:12] if str(commit).isalnum() else "unknown"
