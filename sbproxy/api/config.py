"""Messages of ``/admin/config`` (document 2); a replacement is answered as a reload is."""

from __future__ import annotations

from sbproxy.api.envelope import ApiAnswer


class ConfigAnswer(ApiAnswer):
    """``GET /admin/config``: the text on disk with secrets masked, and the revision that is loaded."""

    yaml: str
    revision: str


class ConfigProblem(ApiAnswer):
    """One entry of ``problems`` in a refused ``PUT /admin/config``; ``line`` counts from 1."""

    file: str
    path: str
    reason: str
    line: int | None = None
    near: str | None = None
