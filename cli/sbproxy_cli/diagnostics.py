"""The only writer of stderr: errors as `sbproxy <verb>: <text>`, notes, and the set-up of log lines.

Transfer progress is drawn by ``sbproxy_cli.progress``, which gets its stream from here.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import TYPE_CHECKING, TextIO

from sbproxy.errors import SbproxyError
from sbproxy.observe.core.scrub import scrub

if TYPE_CHECKING:
    from sbproxy.observe.log_output import LogFormat

LIMIT = 4096


def stream() -> TextIO:
    """Where everything of this module goes."""
    return sys.stderr


def terminal() -> bool:
    """Whether a person may be looking, so that progress can be drawn in place."""
    return sys.stderr.isatty()


def note(text: str) -> None:
    """A line that is no result: what is being done, what was skipped."""
    _write(scrub(text, LIMIT))


def failed(verb: str, error: SbproxyError) -> None:
    """``sbproxy <verb>: <text>``; further lines of the text are indented under it."""
    first, *rest = str(error).split("\n")
    _write(f"sbproxy {verb}: {scrub(first, LIMIT)}")
    for line in rest:
        _write(f"  {scrub(line, LIMIT)}")
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        _traceback(error)


def interrupted(verb: str, text: str = "interrupted") -> None:
    _write(f"sbproxy {verb}: {scrub(text, LIMIT)}")


def unexpected(bug: Exception) -> int:
    """A failure that nobody foresaw: one line, and the traceback only for who asked for it. Returns the exit code."""
    _write(f"sbproxy: unexpected {type(bug).__name__}: {scrub(str(bug), 500)}")
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        _traceback(bug)
    else:
        _write("  this is a defect of sbproxy; run the same with --log-level debug to see the traceback")
    return 1


def log_to_stderr(level: str, style: LogFormat) -> None:
    """Log lines of the rooms that a command uses; the daemon sets up its own (contracts section 9)."""
    from sbproxy.observe.core.redact import Redactor
    from sbproxy.observe.log_output import LEVELS, configure_logging

    configure_logging(LEVELS[level], style, Redactor())


def _traceback(error: BaseException) -> None:
    for line in "".join(traceback.format_exception(error)).splitlines():
        _write(f"  {scrub(line, LIMIT)}")


def _write(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
