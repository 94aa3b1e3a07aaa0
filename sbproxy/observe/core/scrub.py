"""Decides what of a foreign string a terminal or a log line may show (architecture decision 10).

Import-light on purpose: the CLI and the console load it at start-up.
"""

from __future__ import annotations

import re

# Whole sequences go, not only their ESC: what follows an ESC (a title, a link target) is not text for people.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor, scrolling
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"
)
_ELLIPSIS = "…"


def scrub(text: str, limit: int = 1024) -> str:
    """One printable line of at most ``limit`` characters.

    Escape sequences, control, bidi and other invisible format characters disappear; any white space becomes a blank;
    text that is cut ends with an ellipsis. Raises ValueError when ``limit`` is below 1.
    """
    if limit < 1:
        raise ValueError("limit must be at least 1")
    if len(text) <= limit and text.isprintable():
        return text
    # A megabyte from the wire is not walked for the sake of one line.
    head = _ESCAPES.sub("", text[: 4 * limit + 1024])
    kept = "".join(" " if char.isspace() else char for char in head if char.isprintable() or char.isspace())
    return kept if len(kept) <= limit else kept[: limit - 1] + _ELLIPSIS
