"""Decides the text of the systemd user unit and the command line in it. No secret stands in either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NAME = "sbproxy.service"
MARK = "# Written by 'sbproxy service install'; it is replaced and removed by that command."


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """``program`` begins the command line; ``banner`` is the file for what `run` prints, its password included."""

    program: tuple[str, ...]
    model: str
    options: tuple[str, ...]
    banner: str

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.program, "run", self.model, *self.options)

    def text(self) -> str:
        """The whole unit. The banner goes to a private file, for a journal has other readers."""
        return "\n".join(
            [
                MARK,
                "[Unit]",
                f"Description=SBproxy serving {_literal(self.model)}",
                "StartLimitIntervalSec=300",
                "StartLimitBurst=5",
                "",
                "[Service]",
                "Type=exec",
                f"ExecStart={' '.join(map(quoted, self.argv))}",
                "Restart=on-failure",
                "RestartSec=5",
                "KillMode=mixed",
                "TimeoutStopSec=90",
                "UMask=0077",
                f"StandardOutput=truncate:{_literal(self.banner)}",
                "StandardError=journal",
                "",
                "[Install]",
                "WantedBy=default.target",
                "",
            ]
        )


def quoted(word: str) -> str:
    """One word of an ExecStart line: nothing in it is expanded. Raises ValueError for control characters."""
    if not word.isprintable():
        raise ValueError("control characters cannot stand in a unit file")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def run_options(flags: Sequence[tuple[str, str | None]]) -> tuple[str, ...]:
    """``--flag value`` for every flag that has a value."""
    return tuple(word for flag, value in flags if value is not None for word in (flag, value))


def _literal(text: str) -> str:
    if not text.isprintable():
        raise ValueError("control characters cannot stand in a unit file")
    return text.replace("%", "%%")
