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
    check: bool
    typed: frozenset[str]

    def refuse_unused(self, verb: str, *, daemon: bool = False) -> None:
        """``--check`` and ``--shutdown-grace-ms`` mean something only where a daemon would start."""
        if not daemon and "shutdown_grace_ms" in self.typed:
            raise typer.BadParameter(f"--shutdown-grace-ms: sbproxy {verb} starts no daemon")
        if self.check and verb != "serve":
            raise typer.BadParameter(f"--check belongs to serve; sbproxy {verb} does not use it")

    def serve_options(self, environ: Mapping[str, str]) -> ServeOptions:
        """What the daemon is told beside its file."""
        from sbproxy.daemon.options import DEFAULT_GRACE_MS, ServeOptions

        grace_ms = DEFAULT_GRACE_MS if self.shutdown_grace_ms is None else self.shutdown_grace_ms
        return ServeOptions(environ, self.log_level.value, self.log_format.value, grace_ms)

    def config_path(self, positional: Path | None) -> Path | None:
        """The positional wins over SB_CONFIG_FILE; beside a typed ``-f`` it is a contradiction."""
        if positional is not None and "config" in self.typed and positional != self.config:
            raise typer.BadParameter(f"two configurations are named: {positional} and {self.config}")
        return positional or self.config

    def required_config(self, positional: Path | None) -> Path:
        """As :meth:`config_path`; ConfigNotNamed when there is none."""
        path = self.config_path(positional)
        if path is None:
            raise ConfigNotNamed
        return path


def current(context: typer.Context) -> Invocation:
    """The invocation that the root callback stored."""
    invocation = context.find_root().obj
    if not isinstance(invocation, Invocation):
        raise TypeError("the root callback did not run")
    return invocation
