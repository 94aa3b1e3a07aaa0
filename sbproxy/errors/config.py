"""What can be wrong with a configuration, or with the environment that it is read in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a document. ``path`` is the key path, empty for the document as a whole.

    ``line`` and ``column`` count from 1; ``near`` is the closest valid name, ``allowed`` every valid name. Holds no
    value of the document at a secret position.
    """

    file: str
    path: str
    reason: str
    line: int | None = None
    column: int | None = None
    near: str | None = None
    allowed: tuple[str, ...] = ()

    def text(self) -> str:
        """One line: ``sb.yml:12: proxy.admin.prot: unknown key; did you mean 'port'? allowed: …``."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        words = [f"{place}:", f"{self.path}:" if self.path else "", self.reason]
        text = " ".join(word for word in words if word)
        hints = [f"did you mean '{self.near}'?"] if self.near else []
        if self.allowed:
            hints.append(f"allowed: {', '.join(self.allowed)}")
        return f"{text}; {' '.join(hints)}" if hints else text

    def __str__(self) -> str:
        return self.text()


class ConfigError(SbproxyError):
    """Branch: sb.yml and what it is read with."""


@dataclass(eq=False)
class ConfigUnreadable(ConfigError):
    """The file cannot be read at all: missing, no permission, a folder, too large, not UTF-8."""

    code: ClassVar[str] = "config_unreadable"
    file: str
    reason: str

    def text(self) -> str:
        return f"{self.file}: {self.reason}"


@dataclass(eq=False)
class ConfigNotWritten(ConfigError):
    """A new text could not be put in the file's place; what stood there stays. ``running``: it is applied all the
    same, until the next reload or start."""

    code: ClassVar[str] = "config_not_written"
    file: str
    reason: str
    running: bool = False

    def text(self) -> str:
        state = "the new configuration runs, but the file holds the old one" if self.running else "nothing has changed"
        return f"{self.file} cannot be written: {self.reason}; {state}"


@dataclass(eq=False)
class ConfigInvalid(ConfigError):
    """The file was read and is refused. ``problems`` holds everything that is wrong, in the order of the lines."""

    code: ClassVar[str] = "config_invalid"
    file: str
    problems: tuple[Problem, ...]

    def text(self) -> str:
        return "\n".join(problem.text() for problem in self.problems) or f"{self.file}: invalid configuration"


@dataclass(eq=False)
class RestartRequired(ConfigError):
    """A reload would change what only a start can change. ``fields`` are key paths."""

    code: ClassVar[str] = "restart_required"
    fields: tuple[str, ...]

    def text(self) -> str:
        return f"changed, but only a restart can apply it: {', '.join(self.fields)}; the running configuration is kept"


@dataclass(eq=False)
class EnvironmentInvalid(ConfigError):
    """An environment variable holds something that cannot be used. The value is not repeated."""

    code: ClassVar[str] = "environment_invalid"
    variable: str
    reason: str

    def text(self) -> str:
        return f"environment variable {self.variable}: {self.reason}"
