"""What a command line means before it is parsed."""

from __future__ import annotations

import pytest

from sbproxy_cli.app import app
from sbproxy_cli.argv import COMMANDS, arrange, asks_version


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
        ("--help", "--help"),
        ("models --help", "models --help"),
        ("-- models", "serve -- models"),
        ("serve -- -f", "serve -- -f"),
        ("--locked", "--locked"),
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
