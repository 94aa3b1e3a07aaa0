"""Which commit this is and when it was built; ``unknown`` in a tree that was never built or installed."""

from __future__ import annotations

try:
    from sbproxy._build import BUILT, REVISION
except ImportError:
    BUILT = REVISION = "unknown"

__all__ = ["BUILT", "REVISION"]
