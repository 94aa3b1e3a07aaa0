"""Which options a llama.cpp build knows, read from its own ``--help`` text.

Builds differ: an option that one build takes makes another exit at once. Options that the text itself calls removed
count as unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# An option line starts at the margin; its explanation is indented far to the right.
_OPTION_LINE = re.compile(r"^ {0,4}-")
_NAME = re.compile(r" *(--?[A-Za-z0-9][A-Za-z0-9-]*)(,?)")
_REMOVED = "has been removed"
_COLUMN_GAP = re.compile(r" {2,}")


@dataclass(frozen=True, slots=True)
class Flags:
    """``names``: every option and alias. ``valued``: those followed by a value of their own."""

    names: frozenset[str]
    valued: frozenset[str]

    def first(self, *candidates: str) -> str | None:
        """The first candidate that this build knows."""
        return next((name for name in candidates if name in self.names), None)


def parse_help(text: str) -> Flags:
    """Read a whole ``--help`` output; anything that is not an option line is explanation or a heading."""
    entries: list[tuple[list[str], bool, list[str]]] = []
    for line in text.splitlines():
        if _OPTION_LINE.match(line):
            names, rest = _names(line)
            if names:
                takes_value = bool(rest) and not rest.startswith("  ") and bool(_COLUMN_GAP.split(rest.strip())[0])
                entries.append((names, takes_value, [rest]))
        elif entries:
            entries[-1][2].append(line)
    kept = [(names, takes) for names, takes, words in entries if _REMOVED not in " ".join(words)]
    return Flags(
        names=frozenset(name for names, _ in kept for name in names),
        valued=frozenset(name for names, takes in kept if takes for name in names),
    )


def _names(line: str) -> tuple[list[str], str]:
    """The comma-separated option names at the start of a line, and what follows them."""
    names: list[str] = []
    position = 0
    while match := _NAME.match(line, position):
        names.append(match[1])
        position = match.end()
        if not match[2]:
            break
    return names, line[position:]


# Two spaces and an option; what explains it stands at a margin of its own, twenty-odd spaces in.
_ARGPARSE_LINE = re.compile(r"^ {2}(?=-)")
_ARGPARSE_NAME = re.compile(r"(--?[A-Za-z0-9][A-Za-z0-9-]*)( [^\s,-][^,]*| \{.*\}[^,]*)?")


def parse_argparse_help(text: str) -> Flags:
    """Read the help of a Python program (vLLM, SGLang): ``  --long VALUE, -l VALUE  what it does``."""
    names: set[str] = set()
    valued: set[str] = set()
    for line in text.splitlines():
        if not _ARGPARSE_LINE.match(line):
            continue
        # A list of choices holds commas, and what explains an option follows after two spaces.
        said = _COLUMN_GAP.split(re.sub(r"\{[^}]*\}", "CHOICE", line.strip()))[0]
        for part in said.split(", "):
            match = _ARGPARSE_NAME.fullmatch(part.strip())
            if match:
                names.add(match[1])
                if match[2]:
                    valued.add(match[1])
    return Flags(frozenset(names), frozenset(valued))
