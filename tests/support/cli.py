"""Runs the command line: in this process for what it prints and returns, as a child where signals or sockets matter."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from sbproxy_cli.app import app
from sbproxy_cli.argv import arrange

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """This process's environment without anything that steers sbproxy."""
    base = {key: value for key, value in os.environ.items() if not key.startswith(("SB_", "SBPROXY_", "HF_"))}
    return {**base, **more}


def sbproxy(*argv: str, stdin: str = "", env: Mapping[str, str | None] | None = None) -> Ran:
    """In this process, through the same arrangement of arguments as the entry point; not on a terminal."""
    unset = {key: None for key in os.environ if key.startswith(("SB_", "SBPROXY_", "HF_"))}
    result = CliRunner().invoke(
        app, arrange(list(argv)), prog_name="sbproxy", input=stdin, env={**unset, **(env or {})}
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


async def spawn(*argv: str, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> Ran:
    """As a child process, to its end."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sbproxy_cli", *argv,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=environment(**(env or {})),
    )  # fmt: skip
    out, err = await child.communicate(stdin)
    return Ran(child.returncode or 0, out.decode(), err.decode())
