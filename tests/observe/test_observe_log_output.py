"""The process log: levels, formats, redaction at the sink."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from sbproxy.errors.observe import LogSettingInvalid
from sbproxy.observe.core.redact import Redactor
from sbproxy.observe.log_output import MAX_MESSAGE, LogFormat, choose_format, choose_level, configure_logging

LOG = logging.getLogger("sbproxy.observe.testing")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(style: LogFormat, redactor: Redactor | None = None, level: int = logging.DEBUG) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(level, style, redactor or Redactor(), stream)
    return stream


@pytest.mark.parametrize(
    ("flag", "environ", "level"),
    [
        (None, {}, logging.INFO),
        (None, {"SB_LOG_LEVEL": ""}, logging.INFO),
        (None, {"SB_LOG_LEVEL": "debug"}, logging.DEBUG),
        ("error", {"SB_LOG_LEVEL": "debug"}, logging.ERROR),
        ("WARN", {}, logging.WARNING),
    ],
)
def test_level_order(flag: str | None, environ: dict[str, str], level: int) -> None:
    assert choose_level(flag, environ) == level


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(LogSettingInvalid, match="--log-level"):
        choose_level("loud", {})
    with pytest.raises(LogSettingInvalid, match="SB_LOG_LEVEL"):
        choose_level(None, {"SB_LOG_LEVEL": "loud"})
    with pytest.raises(LogSettingInvalid, match="--log-format"):
        choose_format("xml")
    assert [choose_format(value) for value in (None, "json")] == ["compact", "json"]


def test_json_is_one_object_a_line() -> None:
    stream = written("json")
    LOG.warning("it is %s", "so\nit is", extra={"route": "/x", "count": 3, "BAD-NAME": 1})
    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    assert said["level"] == "WARN"
    assert said["target"] == "sbproxy::observe::testing"
    assert said["message"] == "it is so it is"
    assert said["fields"] == {"route": "/x", "count": 3}


@pytest.mark.parametrize("style", ["compact", "pretty"])
def test_text_formats_stay_on_their_lines(style: LogFormat) -> None:
    stream = written(style)
    LOG.info("forged\nERROR other: line \x1b[31m", extra={"route": "/a\r\nb"})
    lines = stream.getvalue().splitlines()
    assert len(lines) == (1 if style == "compact" else 2)
    assert "forged ERROR other: line" in lines[0]
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("style", ["compact", "pretty", "json"])
def test_secrets_never_reach_the_stream(style: LogFormat) -> None:
    redactor = Redactor(["registered-secret"])
    stream = written(style, redactor)
    LOG.info("value registered-secret and registered-\x00secret")
    LOG.info("header %s", {"Authorization": "Bearer eyJabc.def"}, extra={"note": "registered-secret"})
    try:
        raise ValueError("inside registered-secret")
    except ValueError as error:
        error.add_note("note registered-secret")
        LOG.exception("it broke")
    text = stream.getvalue()
    assert "registered-secret" not in text
    assert "eyJabc" not in text
    assert "ValueError" in text
    assert text.count("[REDACTED]") >= 6


def test_a_secret_at_the_cut_is_not_half_shown() -> None:
    secret = "s3cr3t-value-of-some-length"
    stream = written("compact", Redactor([secret]))
    for offset in range(-len(secret), 1):
        LOG.info("x" * (MAX_MESSAGE + offset) + secret)
    assert "s3c" not in stream.getvalue()


def test_long_messages_and_traces_are_bounded() -> None:
    stream = written("json")
    try:
        raise ValueError("\n".join("line" for _ in range(5000)))
    except ValueError:
        LOG.exception("y" * 100_000)
    said = json.loads(stream.getvalue())
    assert len(said["message"]) == MAX_MESSAGE
    assert len(said["exception"]) <= 200


def test_configuring_again_replaces_the_handler() -> None:
    first = written("compact")
    second = written("compact", level=logging.ERROR)
    LOG.info("quiet")
    LOG.error("loud")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
    assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)
