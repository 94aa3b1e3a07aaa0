"""Decides whether a browser sent a request for a page that is not ours.

A browser adds cached Basic credentials to whatever any page makes it send; it also says which page that was. Programs
say nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

_OUR_SITE = frozenset({"same-origin", "none"})
# "none" is a person at the address bar. "same-site" is another port or subdomain: another program.


def is_foreign_page(origins: Sequence[str], fetch_site: str | None, *, own: str, known: Collection[str]) -> bool:
    """``origins`` are the ``Origin`` headers, ``fetch_site`` is ``Sec-Fetch-Site``; ``own`` is the origin that the
    request itself was sent to, ``known`` those that the configuration admits."""
    if origins and all(origin in known for origin in origins):
        return False
    if any(origin.lower() != own.lower() for origin in origins):
        return True
    return fetch_site is not None and fetch_site.lower() not in _OUR_SITE
