"""The version line: `sbproxy <semver> (rev <sha>, built <yyyy-mm-dd>)`. Imports nothing heavy: it has 120 ms."""

from __future__ import annotations

from sbproxy import __version__
from sbproxy.built import BUILT, REVISION


def version_line() -> str:
    """Revision and date are those of the build (``scripts/build_hook.py``)."""
    return f"sbproxy {__version__} (rev {REVISION}, built {BUILT})"
