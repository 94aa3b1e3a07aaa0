"""What a command line means before it is parsed."""

from __future__ import annotations

import pytest

from sbproxy_cli.app import app
from sbproxy_cli.argv import COMMANDS, arrange, asks_version
from sbproxy_cli.invocation import Invocation, LogFormat, LogLevel


@pytest.mark.parametrize(
    ("line", "arranged"),
    [
        ("", "serve"),
        ("sb.yml", "serve sb.yml"),
        ("serve sb.yml", "serve sb.yml"),
        ("-f sb.yml", "--config sb.yml serve"),
        ("sb.yml --check", "--check serve sb.yml"),
        ("models list -f sb.yml", "--config sb.yml models list"),
        ("models -f sb.yml list --format json", "--config sb.yml models list --format json"),
        ("models list --config=sb.yml", "--config sb.yml models list"),
        ("models list -fsb.yml", "--config sb.yml models list"),
        ("run m --log-level debug --port 1", "--log-level debug run m --port 1"),
        ("serve --log-format=json", "--log-format json serve"),
        ("serve x --shutdown-grace-ms 5", "--shutdown-grace-ms 5 serve x"),
        ("serve x --grace-time=5", "--grace-time 5 serve x"),
        ("--help", "--help"),
        ("models --help", "models --help"),
        ("-- models", "serve -- models"),
        ("serve -- -f", "serve -- -f"),
        ("--locked sb.yml", "--locked serve sb.yml"),
        ("serve -f", "--config serve"),
    ],
)
def test_arrange(line: str, arranged: str) -> None:
    assert arrange(line.split()) == arranged.split()


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("version", True),
        ("-V", True),
        ("--version", True),
        ("models list --version", True),
        ("version --help", False),
        ("models list", False),
        ("serve -- --version", False),
        ("", False),
    ],
)
def test_asks_version(line: str, asked: bool) -> None:
    assert asks_version(line.split()) is asked


def test_the_table_of_commands_is_the_parsers() -> None:
    commands = {command.name for command in app.registered_commands}
    groups = {group.name for group in app.registered_groups}
    assert commands | groups == set(COMMANDS)


@pytest.mark.parametrize(
    ("newer", "older", "typed", "grace_ms"),
    [
        (None, None, (), 30_000),
        (5, None, (), 5),
        (None, 7, (), 7_000),
        (9, 7, (), 9),
        (0, 7, ("shutdown_grace_ms",), 0),
        # What is typed wins over what the environment says, also in the older spelling.
        (9, 2, ("grace_time",), 2_000),
    ],
)
def test_how_long_a_stop_may_take(newer: int | None, older: int | None, typed: tuple[str, ...], grace_ms: int) -> None:
    invocation = Invocation(None, LogLevel.info, LogFormat.compact, newer, older, False, frozenset(typed))
    assert invocation.serve_options({}).grace_ms == grace_ms
