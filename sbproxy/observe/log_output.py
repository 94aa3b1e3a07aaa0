"""Sets up the process log: one handler on stderr, three formats, every line redacted and scrubbed at the sink."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

from sbproxy.errors.observe import LogSettingInvalid
from sbproxy.observe.core.redact import Redactor
from sbproxy.observe.core.scrub import scrub

LogFormat = Literal["compact", "pretty", "json"]
FORMATS: Final[tuple[LogFormat, ...]] = ("compact", "pretty", "json")
LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
LEVEL_VARIABLE = "SB_LOG_LEVEL"
MAX_MESSAGE = 8192
MAX_TRACE_LINES = 200

_LEVEL_NAMES = {"WARNING": "WARN", "CRITICAL": "ERROR"}
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


def choose_level(flag: str | None, environ: Mapping[str, str]) -> int:
    """``--log-level``, then ``SB_LOG_LEVEL``, then info. Raises LogSettingInvalid."""
    source, value = ("--log-level", flag) if flag else (LEVEL_VARIABLE, environ.get(LEVEL_VARIABLE) or "info")
    level = LEVELS.get(value.lower())
    if level is None:
        raise LogSettingInvalid(source, scrub(value, 64), tuple(LEVELS))
    return level


def choose_format(value: str | None) -> LogFormat:
    """``compact`` unless said otherwise. Raises LogSettingInvalid."""
    if value is None:
        return "compact"
    if value not in FORMATS:
        raise LogSettingInvalid("--log-format", scrub(value, 64), FORMATS)
    return value


class LineFormatter(logging.Formatter):
    """Turns a record into lines that hold no secret and no control character.

    Redaction comes last, over the finished text, so that arguments, exceptions and their notes are covered too.
    """

    def __init__(self, style: LogFormat, redactor: Redactor) -> None:
        super().__init__()
        self._shape = style
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        level = _LEVEL_NAMES.get(record.levelname, record.levelname)
        target = record.name.replace(".", "::")
        message = self._clean(record.getMessage(), MAX_MESSAGE)
        trace = self._trace(record)
        if self._shape == "json":
            return self._json(record, moment, level, target, message, trace)
        fields = "".join(f" {name}={json.dumps(value)}" for name, value in self._fields(record).items())
        if self._shape == "pretty":
            clock = moment.astimezone().strftime("%H:%M:%S")
            head = f"{clock} {level:<5} {message}{fields}\n               at {target}"
        else:
            head = f"{_rfc3339(moment)} {level} {target}: {message}{fields}"
        return "\n".join([head, *(f"    {line}" for line in trace)])

    def _json(
        self, record: logging.LogRecord, moment: datetime, level: str, target: str, message: str, trace: list[str]
    ) -> str:
        line: dict[str, object] = {"timestamp": _rfc3339(moment), "level": level, "target": target, "message": message}
        if fields := self._fields(record):
            line["fields"] = fields
        if trace:
            line["exception"] = trace
        return json.dumps(line)

    def _fields(self, record: logging.LogRecord) -> dict[str, str | int | float | bool | None]:
        """What the caller passed as ``extra``, values bounded."""
        return {
            name: value if value is None or isinstance(value, int | float) else self._clean(str(value), 512)
            for name, value in vars(record).items()
            if name not in _STANDARD and _NAME.fullmatch(name)
        }

    def _trace(self, record: logging.LogRecord) -> list[str]:
        if not record.exc_info or record.exc_info[0] is None:
            return []
        # The exception's own text may span lines that hold a registered secret, so redact the whole before splitting.
        whole = self._redactor.redact("".join(traceback.format_exception(*record.exc_info)))
        return [scrub(line, 1024) for line in whole.splitlines() if line.strip()][-MAX_TRACE_LINES:]

    def _clean(self, text: str, limit: int) -> str:
        # Scrubbed first, because a control character inside a secret would hide it; cut last, because half a secret
        # at the cut is still a secret.
        return scrub(self._redactor.redact(scrub(text, 8 * limit)), limit)


def configure_logging(
    level: int, style: LogFormat, redactor: Redactor, stream: TextIO | None = None
) -> logging.Handler:
    """Make the root logger write to ``stream`` (stderr) and to nothing else; call it again to change any of it."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(style, redactor))
    root = logging.getLogger()
    for former in list(root.handlers):
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level)
    # These narrate every connection at info and below; the request log is our own.
    for chatty in ("aiohttp.access", "httpx", "httpcore", "watchfiles", "asyncio"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    return handler


def _rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
