"""Decides what a command line means before the parser sees it: global flags at any depth, and `serve` by default."""

from __future__ import annotations

from collections.abc import Sequence

COMPLETE_VARIABLE = "_SBPROXY_COMPLETE"
"""Set by a shell that asks for completions instead of running a command."""

COMMANDS = (
    "serve",
    "run",
    "validate",
    "plan",
    "apply",
    "config",
    "doctor",
    "devices",
    "models",
    "service",
    "admin",
    "tui",
    "completions",
    "version",
)
_WITH_VALUE = {"-f": "--config", **{name: name for name in ("--config", "--log-level", "--log-format")}}
_WITH_VALUE |= {name: name for name in ("--shutdown-grace-ms", "--grace-time")}
_SWITCHES = ("--check", "--locked")
_VERSION = ("-V", "--version")


def asks_version(argv: Sequence[str]) -> bool:
    """`sbproxy version`, or `-V` / `--version` anywhere before `--`."""
    if list(argv) == ["version"]:
        return True
    flags = argv[: argv.index("--")] if "--" in argv else argv
    return any(flag in _VERSION for flag in flags)


def arrange(argv: Sequence[str]) -> list[str]:
    """Global flags first, then the command; a line without a command serves (contracts section 9)."""
    flags, rest = _hoist(argv)
    words = [word for word in rest if not word.startswith("-")]
    if not rest or (rest[0] == "--" and words) or (words and rest[0] == words[0] and words[0] not in COMMANDS):
        rest = ["serve", *rest]
    return [*flags, *rest]


def _hoist(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    flags: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif word in _SWITCHES:
            flags.append(word)
        elif name in _WITH_VALUE and equals:
            flags += [_WITH_VALUE[name], value]
        elif word in _WITH_VALUE:
            # Without a value the flag stays alone at the end, and the parser says what is missing.
            flags += [_WITH_VALUE[word], *[value for value in [next(words, None)] if value is not None]]
        elif word.startswith("-f") and len(word) > 2:
            flags += ["--config", word[2:]]
        else:
            rest.append(word)
    return flags, rest
