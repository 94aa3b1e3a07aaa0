"""The global flags of one command line, and the rule which of them a verb uses; the rest is refused, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sbproxy.errors.cli import ConfigNotNamed

if TYPE_CHECKING:
    from sbproxy.daemon.options import ServeOptions


class LogLevel(StrEnum):
    """As ``sbproxy.observe.log_output`` names them; a test holds the two together."""

    trace = "trace"
    debug = "debug"
    info = "info"
    warn = "warn"
    error = "error"
    off = "off"


class LogFormat(StrEnum):
    compact = "compact"
    pretty = "pretty"
    json = "json"


@dataclass(frozen=True, slots=True)
class Invocation:
    """``typed`` holds the names of the flags that stand on the command line, not in the environment."""

    config: Path | None
    log_level: LogLevel
    log_format: LogFormat
    shutdown_grace_ms: int | None
    grace_time: int | None
    check: bool
    typed: frozenset[str]
    locked: bool = False

    def refuse_unused(self, verb: str, *, daemon: bool = False) -> None:
        """``--check`` and the grace flags mean something only where a daemon would start."""
        grace = {"shutdown_grace_ms": "--shutdown-grace-ms", "grace_time": "--grace-time"}
        typed = [flag for name, flag in grace.items() if name in self.typed]
        if typed and not daemon:
            raise typer.BadParameter(f"{typed[0]}: sbproxy {verb} starts no daemon")
        if len(typed) > 1:
            raise typer.BadParameter("--shutdown-grace-ms and --grace-time say the same; give one of them")
        if self.check and verb != "serve":
            raise typer.BadParameter(f"--check belongs to serve; sbproxy {verb} does not use it")
        if self.locked and verb != "serve":
            raise typer.BadParameter(f"--locked belongs to serve; sbproxy {verb} does not use it")

    def serve_options(self, environ: Mapping[str, str]) -> ServeOptions:
        """What the daemon is told beside its file."""
        from sbproxy.daemon.options import ServeOptions

        return ServeOptions(environ, self.log_level.value, self.log_format.value, self._grace_ms())

    def _grace_ms(self) -> int:
        """A flag wins over the environment, the newer spelling over the older one (contracts section 1)."""
        from sbproxy.daemon.options import DEFAULT_GRACE_MS

        older = None if self.grace_time is None else self.grace_time * 1000
        newer = self.shutdown_grace_ms
        first, second = (older, newer) if "grace_time" in self.typed else (newer, older)
        return first if first is not None else second if second is not None else DEFAULT_GRACE_MS

    def config_path(self, positional: Path | None) -> Path | None:
        """The positional wins over SB_CONFIG_FILE; beside a typed ``-f`` it is a contradiction."""
        if positional is not None and "config" in self.typed and positional != self.config:
            raise typer.BadParameter(f"two configurations are named: {positional} and {self.config}")
        return positional or self.config

    def required_config(self, positional: Path | None, *, serving: bool = False) -> Path:
        """As :meth:`config_path`; ConfigNotNamed when there is none."""
        path = self.config_path(positional)
        if path is None:
            raise ConfigNotNamed(serving)
        return path


def current(context: typer.Context) -> Invocation:
    """The invocation that the root callback stored."""
    invocation = context.find_root().obj
    if not isinstance(invocation, Invocation):
        raise TypeError("the root callback did not run")
    return invocation
